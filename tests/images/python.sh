#!/bin/sh
# Makes the image `python:<version>` of the tests out of Debian packages: those of Python, a shell and the usual tools, as
# they are installed in a base layer, and pushes it to a registry on this machine.
#   python.sh <layer directory> <registry host:port> <repository:tag>
set -eu
layer=$1 registry=$2 name=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

packages="base-files base-passwd bash coreutils dash debianutils findutils grep gzip hostname libacl1 libattr1 libaudit1
libbz2-1.0 libc-bin libc6 libcap-ng0 libcrypt1 libdb5.3 libexpat1 libffi8 libgcc-s1 libgmp10 liblzma5 libncursesw6
libnsl2 libpam-modules libpam-modules-bin libpam-runtime libpam0g libpcre2-8-0 libpython3-stdlib libreadline8
libselinux1 libsemanage2 libsepol2 libsqlite3-0 libssl3 libtinfo6 libtirpc3 libuuid1 login media-types mawk passwd sed sudo
tar zlib1g"
version=$(basename "$(readlink "$layer/usr/bin/python3")")
packages="$packages $version $version-minimal lib$version-minimal lib$version-stdlib python3 python3-minimal"

{
	# The links of a merged /usr, which belong to no package.
	for name_in_root in bin lib lib64 sbin etc/passwd etc/group etc/shadow etc/ld.so.cache usr/bin/python \
		usr/bin/awk home/user tmp var/tmp dev proc sys run root srv; do
		[ ! -e "$layer/$name_in_root" ] && [ ! -L "$layer/$name_in_root" ] || echo "$name_in_root"
	done
	(cd "$layer" && find etc/pam.d)
	for package in $packages; do
		for list in "$layer/var/lib/dpkg/info/$package.list" "$layer/var/lib/dpkg/info/$package":*.list; do
			[ ! -e "$list" ] || sed 's,^/,,; /^\.$/d; \,^usr/share/\(doc\|man\|locale\|info\|lintian\)/,d' "$list"
		done
	done | sed 's,^\(bin\|sbin\|lib\|lib64\)/,usr/\1/,'
} | sort -u >names
# What a package lists and the base does not have (documentation that was left out) is no loss.
tar -C "$layer" --create --file rootfs.tar --no-recursion --owner=0 --group=0 --numeric-owner --ignore-failed-read \
	--verbatim-files-from --files-from names 2>/dev/null || [ -s rootfs.tar ]
umoci init --layout image
umoci new --image image:1
umoci raw add-layer --image image:1 rootfs.tar
umoci config --image image:1 --config.env=PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin \
	--config.env=LANG=C.UTF-8 --config.cmd=python3
skopeo --insecure-policy copy --quiet --dest-tls-verify=false oci:image:1 "docker://$registry/$name"
