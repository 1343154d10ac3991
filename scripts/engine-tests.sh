# For test-vm.sh and test-gvisor.sh, which read it: builds what the integration tests of one engine need, and names it to them.
cargo build --quiet --workspace --all-targets
scripts/build-agent.sh target/guest/bin
export SUPERSERVE_LAYERS_DIR="${SUPERSERVE_LAYERS_DIR:-$PWD/target/base-layers}"
export SUPERSERVE_AGENT="${SUPERSERVE_AGENT:-$PWD/target/guest/bin/superserve-agent}"
target/debug/examples/bootstrap "$SUPERSERVE_LAYERS_DIR"
target/debug/examples/curated "$SUPERSERVE_LAYERS_DIR" desktop || echo "superserve/desktop cannot be made: its tests say that they are skipped" >&2
