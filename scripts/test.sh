#!/bin/sh
# Everything that has to hold, in one run: format, lints, unit and integration tests with real sandboxes, and the
# official clients against a running platform. The layers of base and desktop are made once and kept in
# target/base-layers.
set -eu
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
	echo "make test needs root: it starts real sandboxes. Try: sudo -E env PATH=\"\$PATH\" make test" >&2
	exit 1
fi
step() { printf '\n== %s\n' "$*"; }

step install
scripts/install-test-deps.sh
step format
cargo fmt --all --check
step lints
cargo clippy --workspace --all-targets --quiet -- -D warnings
# The product by itself: beside its tests it has features that it is not shipped with.
cargo check --quiet -p superserve --bin superserve
step build
# With the tests, or their wider features would compile everything a second time.
cargo build --quiet --workspace --all-targets
# Not in target/debug: cargo puts a dynamically linked agent there, which runs in no other root file system.
scripts/build-agent.sh target/guest/bin
step base and desktop layers
export SUPERSERVE_LAYERS_DIR="${SUPERSERVE_LAYERS_DIR:-$PWD/target/base-layers}"
target/debug/examples/bootstrap "$SUPERSERVE_LAYERS_DIR"
# Without it, tests of the desktop say that they are skipped: Ubuntu, for one, has no package of Chromium. Debian has all.
notice=
if ! target/debug/examples/curated "$SUPERSERVE_LAYERS_DIR" desktop; then
	notice="NOTICE: superserve/desktop cannot be made here; its tests were skipped"
	printf '%s\n' "$notice" >&2
	if (. /etc/os-release && [ "$ID" = debian ]); then
		echo "On Debian it must be possible." >&2
		exit 1
	fi
fi
export SUPERSERVE_AGENT="$PWD/target/guest/bin/superserve-agent"
step unit and integration tests
if cargo nextest --version >/dev/null 2>&1; then
	cargo nextest run --workspace --no-fail-fast
else
	cargo test --workspace --no-fail-fast --quiet
fi
step official clients
SUPERSERVE_TS_TESTS="$PWD/target/clients/ts" PYTHONDONTWRITEBYTECODE=1 target/clients/venv/bin/python -m pytest tests
if [ -n "$notice" ]; then printf '%s\n' "$notice" >&2; fi
