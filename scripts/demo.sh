#!/bin/sh
# `make demo`: the demo against the server that runs, or against one started for it and stopped afterwards.
set -eu
cd "$(dirname "$0")/.."
program=target/release/superserve
python=target/clients/venv/bin/python
state=${STATE_DIR:-/var/lib/superserve}
if ! "$program" sandbox --state-dir "$state" list >/dev/null 2>&1; then
	state=$(mktemp -d /tmp/superserve-demo-XXXXXX)
	"$program" up --state-dir "$state" --layers-dir "$PWD/target/base-layers" --listen 127.0.0.1:0 --edge-listen 127.0.0.1:0 \
		>"$state/log" 2>&1 &
	server=$!
	trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; "$program" reset --state-dir "$state" --yes >/dev/null; rm -rf "$state"' EXIT
	echo "starting a platform for the demo (the first time, this makes the base template)"
	# The base template takes a minute with a near mirror; give a slow line half an hour.
	tries=0
	until "$program" sandbox --state-dir "$state" list >/dev/null 2>&1; do
		tries=$((tries + 1))
		if [ "$tries" -gt 3600 ] || ! kill -0 "$server" 2>/dev/null; then
			cat "$state/log" >&2
			exit 1
		fi
		sleep 0.5
	done
fi
"$python" scripts/demo.py "$program" "$state"
