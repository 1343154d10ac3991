# make up     install what is missing, build, start the platform; stays in the foreground
# make test   install what the tests need, run everything
# make test-gvisor  the same with sandboxes of gVisor
# make test-vm  much of the integration tests with sandboxes as virtual machines; slow where they are emulated
# make demo   an agent's session through a real MCP client, as a transcript
# make clean  remove what was built
#
# STATE_DIR=<dir> chooses where the platform keeps its state (default /var/lib/superserve).

# Sandboxes need root; building does not.
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo)
STATE_FLAG := $(if $(STATE_DIR),--state-dir $(STATE_DIR))

.PHONY: up build deps test test-vm test-gvisor demo clean

up: build
	$(SUDO) target/release/superserve up $(STATE_FLAG)

build: deps
	cargo build --release -p superserve
	scripts/build-agent.sh target/release

deps:
	scripts/install-deps.sh

test:
	scripts/test.sh

test-vm:
	scripts/test-vm.sh

test-gvisor:
	scripts/test-gvisor.sh

demo: build
	scripts/install-test-deps.sh
	$(SUDO) env STATE_DIR=$(STATE_DIR) scripts/demo.sh

clean:
	cargo clean
