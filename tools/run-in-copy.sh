#!/bin/bash
# The second half of setup.sh; call that instead.  This script runs as an ordinary
# user, in the copy of the tree.
#
# The command finds the programs of the server and of the Python environment in
# its PATH, and in its environment
#   PG_CONFIG   the server, a private copy with Weft installed
#   PG_HEADERS  the pg_config of the server that it is a copy of, which has the headers
#   PG_MAJOR    its major version
#   WEFT_CACHE  everything fetched and built, including the server's source
set -euo pipefail
# shellcheck source=tools/lib.sh
. "$(dirname "$0")/lib.sh"

major=$1
flavour=$2
shift 2
work=$(dirname "$PWD")

make_venv()
{
	local hash
	hash=$( { /usr/bin/python3 --version; cat tools/requirements.txt; } | sha256sum | cut -c1-8)
	venv=$cache/venv-$hash
	exec 8>>"$cache/venv.lock"
	flock 8
	if [ ! -e "$venv/.complete" ]; then
		say "installing the Python packages of tools/requirements.txt in $venv"
		rm -rf "$venv"
		quietly /usr/bin/python3 -m venv "$venv" || die "python3 -m venv failed (see above)"
		quietly "$venv/bin/pip" install -r tools/requirements.txt || die "pip failed (see above)"
		touch "$venv/.complete"
	fi
	exec 8>&-
}

original=${PG_CONFIG:-$(tools/get-server.sh "$major" "$flavour")}
make_venv
if ! has_copy "$original" "$work/server"; then
	quietly make clean PG_CONFIG="$original"
	quietly make -C test/unit clean PG_CONFIG="$original"
	copy_server "$original" "$work/server"
fi
PG_CONFIG=$work/server$("$original" --bindir)/pg_config
quietly make -s -j"$(nproc)" PG_CONFIG="$original" COPT=-Werror || die "Weft could not be built (see above)"
quietly make -s install PG_CONFIG="$PG_CONFIG" || die "Weft could not be installed (see above)"
if [ "$flavour" = assert ]; then
	# what tests attach to injection points, which is no part of Weft
	quietly make -s -B -C test/injection PG_CONFIG="$original" COPT=-Werror &&
		quietly make -s -C test/injection install PG_CONFIG="$PG_CONFIG" ||
		die "test/injection could not be built (see above)"
fi

if [ $# = 0 ]; then
	say "ready: $("$PG_CONFIG" --version) with Weft in $(dirname "$PG_CONFIG")"
	exit
fi
exec env PG_CONFIG="$PG_CONFIG" PG_HEADERS="$original" PG_MAJOR="$major" WEFT_CACHE="$cache" \
	PATH="$venv/bin:$(dirname "$PG_CONFIG"):$PATH" "$@"
