#!/bin/sh
# Integration tests whose subject is not the container engine, with sandboxes as virtual machines: test-vm.sh [nextest filter].
# Emulated, a test takes up to a minute; --vm-acceleration kvm by SUPERSERVE_VM_ACCELERATION=kvm where that works.
set -eu
cd "$(dirname "$0")/.."
scripts/install-test-deps.sh
. scripts/engine-tests.sh
root=target/vm-kernel
release=
for image in "$root"/boot/vmlinuz-*-cloud-*; do
	[ -e "$image" ] && release=${image##*/vmlinuz-}
done
if [ -z "$release" ]; then
	echo "There is no kernel for virtual machines below $root (scripts/vm-kernel.sh): nothing was tested." >&2
	exit 1
fi
SUPERSERVE_VM_KERNEL="$PWD/$root/boot/vmlinuz-$release"
SUPERSERVE_VM_MODULES="$PWD/$root/lib/modules/$release"
export SUPERSERVE_ISOLATION=qemu SUPERSERVE_VM_KERNEL SUPERSERVE_VM_MODULES
# Of one snapshot; in CI there are fewer.
export SUPERSERVE_FORKS="${SUPERSERVE_FORKS:-10}"
# One at a time: a start that is emulated beside others may take longer than clients wait.
cargo nextest run --workspace --profile vm --no-fail-fast --test-threads 1 -E "${1:-binary(it) & ($(grep -v '^#' scripts/test-vm.filter))}"
