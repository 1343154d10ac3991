#!/bin/sh
# Installs what `make test` needs beyond the platform: the official clients at fixed versions, below target/ only.
set -eu
cd "$(dirname "$0")/.."
scripts/install-deps.sh tests
# gVisor, where the distribution has it.
command -v runsc >/dev/null || apt-get install -y -qq runsc >/dev/null || echo "runsc cannot be installed: tests of gVisor are skipped" >&2
# A guest kernel for tests of virtual machines.
scripts/vm-kernel.sh target/vm-kernel

clients=target/clients
mkdir -p "$clients"
if ! cmp -s tests/requirements.txt "$clients/requirements.txt"; then
	rm -rf "$clients/venv"
	python3 -m venv "$clients/venv"
	"$clients/venv/bin/pip" install --quiet --disable-pip-version-check -r tests/requirements.txt
	cp tests/requirements.txt "$clients/requirements.txt"
fi
mkdir -p "$clients/ts"
if ! cmp -s tests/sdk/ts/package-lock.json "$clients/ts/installed.json"; then
	cp tests/sdk/ts/package.json tests/sdk/ts/package-lock.json "$clients/ts/"
	(cd "$clients/ts" && npm ci --silent --no-audit --no-fund)
	cp tests/sdk/ts/package-lock.json "$clients/ts/installed.json"
fi
# The script stands beside its node_modules.
cp tests/sdk/ts/package.json tests/sdk/ts/*.mjs "$clients/ts/"

# The MCP conformance suite and the MCP Inspector, with a newer Node than distributions have. Packages run no scripts.
conformance="$clients/conformance"
mkdir -p "$conformance"
if ! cmp -s tests/conformance/package-lock.json "$conformance/installed.json"; then
	cp tests/conformance/package.json tests/conformance/package-lock.json "$conformance/"
	(cd "$conformance" && npm ci --silent --no-audit --no-fund --ignore-scripts)
	cp tests/conformance/package-lock.json "$conformance/installed.json"
fi

# The development server whose hot reload a browser test watches. It runs in a sandbox, which has no internet.
vite="$clients/vite"
mkdir -p "$vite"
if ! cmp -s tests/mcp/vite/package-lock.json "$vite/installed.json"; then
	cp tests/mcp/vite/package.json tests/mcp/vite/package-lock.json "$vite/"
	(cd "$vite" && npm ci --silent --no-audit --no-fund --ignore-scripts)
	cp tests/mcp/vite/package-lock.json "$vite/installed.json"
fi
