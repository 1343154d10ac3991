#!/bin/sh
# Puts a kernel for virtual machines and its modules below a directory, out of the distribution's package, without installing it:
# vm-kernel.sh <directory>. Does nothing where there is one already, and says so where none can be had.
set -eu
[ $# = 1 ] || { echo "usage: $0 <directory>" >&2; exit 2; }
ls "$1"/boot/vmlinuz-*-cloud-* >/dev/null 2>&1 && exit 0

package=$(apt-cache depends --important linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: *\(linux-image-[0-9].*\)$/\1/p' | head -n 1)
if [ -z "$package" ]; then
	echo "No package of a cloud kernel is known here; tests of virtual machines are skipped." >&2
	exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# apt-get reads its files as another user where it can.
chmod 755 "$work"
(cd "$work" && { apt-get download -q "$package" || { apt-get update -q && apt-get download -q "$package"; }; })
mkdir "$work/root"
dpkg-deb -x "$work"/*.deb "$work/root"
mkdir -p "$1/lib"
rm -rf "$1/lib/modules"
mv "$work/root/lib/modules" "$1/lib/modules"
# Last: it says that everything is there.
mv "$work/root/boot" "$1/boot"
