#!/bin/sh
# Puts a kernel for virtual machines and its modules below a directory, out of the distribution's package, without installing it:
# vm-kernel.sh <directory>. Does nothing where there is one already. Where none can be had it says so and succeeds: tests of
# virtual machines are skipped then.
set -eu
[ $# = 1 ] || { echo "usage: $0 <directory>" >&2; exit 2; }
there() { ls "$1"/boot/vmlinuz-*-cloud-* >/dev/null 2>&1; }
if there "$1"; then exit 0; fi

# The one that the package without a version names now.
newest() {
	apt-cache depends --important linux-image-cloud-amd64 2>/dev/null |
		sed -n 's/^ *Depends: *\(linux-image-[0-9].*\)$/\1/p' | head -n 1
}
fetch() {
	package=$(newest)
	[ -n "$package" ] && apt-get download -q "$package"
}
get() {
	# In the target's own directory: the last step is one rename, so that the target is there as a whole or not at all.
	mkdir -p "$(dirname "$1")" || return 1
	work=$(mktemp -d "$(dirname "$1")/.vm-kernel.XXXXXX") || return 1
	trap 'rm -rf "$work"' EXIT
	trap 'exit 1' HUP INT TERM
	# apt-get reads its files as another user where it can.
	chmod 755 "$work" || return 1
	# Lists may be old, and name what is no longer offered.
	(cd "$work" && { fetch || { apt-get update -q && fetch; }; }) || return 1
	dpkg-deb -x "$work"/*.deb "$work/root" || return 1
	rm -rf "$work/root/usr"
	there "$work/root" || return 1
	# Whatever is there now is half of one.
	rm -rf "$1" && mv "$work/root" "$1"
}
get "$1" || echo "skipped: no kernel for virtual machines can be had here, so their tests are skipped" >&2
exit 0
