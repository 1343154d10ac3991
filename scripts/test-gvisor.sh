#!/bin/sh
# The integration tests with sandboxes of gVisor, but those that scripts/test-gvisor.filter names: test-gvisor.sh [nextest filter].
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
target/debug/examples/curated "$SUPERSERVE_LAYERS_DIR" desktop || echo "superserve/desktop cannot be made: its tests say that they are skipped" >&2
export SUPERSERVE_ISOLATION=gvisor
cargo nextest run --workspace --no-fail-fast --run-ignored all --test-threads 2 -E "${1:-package(superserve) & binary(it) & ($(grep -v '^#' scripts/test-gvisor.filter))}"
