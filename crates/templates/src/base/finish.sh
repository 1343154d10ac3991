# The archive that the host uses, which is known to work from here; without names and passwords of the host's, should its
# addresses hold any.
for file in "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*; do
	[ -f "$file" ] || continue
	sed -i -E -e '/^[[:space:]]*#/d' -e 's#://[^/@[:space:]]*@#://#g' "$file"
done

printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
printf 'nameserver 1.1.1.1\nnameserver 8.8.8.8\n' >"$root/etc/resolv.conf"
echo sandbox >"$root/etc/hostname"
: >"$root/etc/machine-id"
rm -f "$root"/var/log/*.log "$root"/var/log/apt/* "$root"/var/cache/ldconfig/aux-cache "$root"/var/cache/debconf/*-old \
	"$root"/var/lib/dpkg/*-old "$root"/etc/*- "$root"/var/cache/apt/*.bin
rm -rf "$root"/usr/local/lib/node_modules/npm/man "$root"/usr/local/lib/node_modules/npm/docs "$root"/root/.cache
