#!/bin/bash
# Replaces the library of released versions of Weft by the current one, under load (test/upgrade).  Released versions
# are built from this repository's history; therefore this is not part of "make check".
#
# usage: tools/check-upgrade.sh
set -euo pipefail
# shellcheck source=tools/lib.sh
. "$(dirname "$0")/lib.sh"

tree=$(cd "$(dirname "$0")/.." && pwd -P)

# A commit of each released version, with the SQL script that is in sql/released.
declare -A releases=([0.1.0]=ee38e1a)

mkdir -p "$cache/releases"
for version in "${!releases[@]}"; do
	source=$cache/releases/weft-$version
	if [ ! -e "$source/weft.control" ]; then
		mkdir -p "$source"
		git -C "$tree" archive "${releases[$version]}" | tar -x -C "$source"
	fi
	chmod -R a+rX "$cache/releases"
done
WEFT_RELEASES=$cache/releases exec "$tree/tools/setup.sh" assert python tools/run-check.py upgrade
