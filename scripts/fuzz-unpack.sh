#!/bin/sh
# Fuzzes the layer unpacker, guided by coverage: scripts/fuzz-unpack.sh [SECONDS]. Needs root, a C++ compiler and /dev/shm.
# Inputs that were worth keeping stay in target/fuzz/corpus, findings in target/fuzz/artifacts.
set -eu
cd "$(dirname "$0")/.."
target=$(rustc -vV | sed -n 's/^host: //p')
work=$PWD/target/fuzz
mkdir -p "$work/corpus" "$work/artifacts"
# Only with --target are build scripts and macros left alone by the flags.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1" \
  cargo build --release --manifest-path fuzz/Cargo.toml --target "$target" --target-dir "$work/build"
exec "$work/build/$target/release/unpack" "$work/corpus" -max_total_time="${1:-60}" -max_len=65536 -timeout=20 \
  -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$work/artifacts/"
