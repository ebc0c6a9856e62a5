#!/bin/bash
# Prints the directory of the programs of a private copy of another server with Weft installed, for tests with two
# major versions, or with two versions of Weft; builds what is missing.  Called in the copy of the tree.
#
# usage: tools/second-server.sh MAJOR FLAVOUR [SOURCE]
#   SOURCE   the source of another version of Weft
set -euo pipefail
# shellcheck source=tools/lib.sh
. "$(dirname "$0")/lib.sh"

major=$1
flavour=$2
source=${3:-$PWD}
second=$(dirname "$PWD")/second-$major-$flavour-$(basename "$source")

original=$(tools/get-server.sh "$major" "$flavour")
mkdir -p "$second"
if ! has_copy "$original" "$second/server"; then
	rm -rf "$second/build"
	copy_server "$original" "$second/server"
fi
# A copy: make would take the objects of the first server, which may be among the source.
copy_source "$source" "$second/build"
cd "$second/build"
bindir=$second/server$("$original" --bindir)
quietly make -s -j"$(nproc)" PG_CONFIG="$original" COPT=-Werror || die "Weft could not be built for PostgreSQL $major (see above)"
quietly make -s install PG_CONFIG="$bindir/pg_config" || die "Weft could not be installed in PostgreSQL $major (see above)"
echo "$bindir"
