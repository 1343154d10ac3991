#!/bin/sh
# The integration tests with sandboxes of gVisor, but those that scripts/test-gvisor.filter names: test-gvisor.sh [nextest filter].
set -eu
cd "$(dirname "$0")/.."
scripts/install-test-deps.sh
if ! command -v runsc >/dev/null; then
	echo "runsc is not installed: nothing was tested." >&2
	exit 1
fi
. scripts/engine-tests.sh
export SUPERSERVE_ISOLATION=gvisor
cargo nextest run --workspace --no-fail-fast --run-ignored all --test-threads 2 -E "${1:-package(superserve) & binary(it) & ($(grep -v '^#' scripts/test-gvisor.filter))}"
