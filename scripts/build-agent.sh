#!/bin/sh
# Builds the guest agent, linked statically because it runs in any root file system, and puts it beside a superserve
# program: build-agent.sh <directory>.
set -eu
cd "$(dirname "$0")/.."
target=$(rustc -vV | sed -n 's/^host: //p')
# Naming the target keeps the flag away from build scripts and macros, which cannot be static.
RUSTFLAGS="-C target-feature=+crt-static" cargo build --quiet -p agent --profile agent --target "$target" --target-dir target/guest
mkdir -p "$1"
# A running server may be using the old file.
cp "target/guest/$target/agent/superserve-agent" "$1/.superserve-agent.new"
mv "$1/.superserve-agent.new" "$1/superserve-agent"
