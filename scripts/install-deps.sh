#!/bin/sh
# Installs what the platform needs on a Debian or Ubuntu machine, and only what is missing. A second run does nothing.
set -eu

need_packages=""
need() { # need <program> <package>
	command -v "$1" >/dev/null 2>&1 || need_packages="$need_packages $2"
}

PATH=$PATH:/usr/sbin:/sbin
need runc runc
need nft nftables
need mmdebstrap mmdebstrap
need mke2fs e2fsprogs
need ip iproute2
need unshare util-linux
need cc build-essential
need curl curl
for extra in "$@"; do
	case $extra in
	tests)
		need node nodejs
		need npm npm
		need git git
		# A test puts it in front of MCP over HTTP.
		need nginx nginx
		# Tests send it through an OAuth flow and to previews.
		command -v "${SUPERSERVE_CHROMIUM:-chromium}" >/dev/null 2>&1 || need chromium-headless-shell chromium-headless-shell
		# Images are made and served by the usual tools.
		need docker-registry docker-registry
		need skopeo skopeo
		need umoci umoci
		# One of the attacks on the unpacker is packed with it.
		need zstd zstd
		# Tests of virtual machines; their kernel comes with scripts/vm-kernel.sh.
		[ "$(uname -m)" != x86_64 ] || need qemu-system-x86_64 qemu-system-x86
		# Tests of the container engine use its static program as a whole root file system.
		dpkg-query -W -f='${Status}' busybox-static 2>/dev/null | grep -q 'ok installed' || need_packages="$need_packages busybox-static"
		command -v python3 >/dev/null 2>&1 || need_packages="$need_packages python3"
		python3 -c 'import ensurepip, venv' 2>/dev/null || need_packages="$need_packages python3-venv"
		;;
	*)
		echo "usage: $0 [tests]" >&2
		exit 2
		;;
	esac
done

if [ -n "$need_packages" ]; then
	if ! command -v apt-get >/dev/null 2>&1; then
		echo "This machine has no apt-get. Install these programs by other means:$need_packages" >&2
		exit 1
	fi
	sudo=""
	[ "$(id -u)" = 0 ] || sudo=sudo
	echo "installing:$need_packages"
	$sudo apt-get update -q
	case $need_packages in
	*" chromium-headless-shell"*)
		if ! apt-cache show chromium-headless-shell >/dev/null 2>&1; then
			echo "This system has no package of a headless Chromium; tests that need one are skipped unless SUPERSERVE_CHROMIUM names one." >&2
			need_packages=$(echo "$need_packages" | sed 's/ chromium-headless-shell//')
		fi
		;;
	esac
	# shellcheck disable=SC2086 # a list of packages
	$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $need_packages
fi

if ! command -v cargo >/dev/null 2>&1; then
	echo "Rust is missing (1.94 or newer, with rustfmt and clippy). Install it from https://rustup.rs and start again." >&2
	exit 1
fi
