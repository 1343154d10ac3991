#!/bin/sh
# Integration tests whose subject is not the container engine, with sandboxes of gVisor: test-gvisor.sh [nextest filter].
# Left out of scripts/test-gvisor.filter is what this release of gVisor cannot do (docs/isolation.md): `sudo`, `ls` and `stat` of newer
# coreutils, and whatever counts processes of the host.
set -eu
cd "$(dirname "$0")/.."
scripts/install-test-deps.sh
if ! command -v runsc >/dev/null; then
	echo "runsc is not installed: nothing was tested." >&2
	exit 1
fi
cargo build --quiet --workspace --all-targets
scripts/build-agent.sh target/guest/bin
export SUPERSERVE_LAYERS_DIR="${SUPERSERVE_LAYERS_DIR:-$PWD/target/base-layers}"
export SUPERSERVE_AGENT="${SUPERSERVE_AGENT:-$PWD/target/guest/bin/superserve-agent}"
target/debug/examples/bootstrap "$SUPERSERVE_LAYERS_DIR"
export SUPERSERVE_ISOLATION=gvisor
cargo nextest run --workspace --no-fail-fast --run-ignored all --test-threads 2 -E "${1:-binary(it) & ($(cat scripts/test-gvisor.filter))}"
