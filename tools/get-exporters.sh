#!/bin/bash
# Fetches Prometheus and two exporters, which the tests of monitoring/ run, and prints
# the directory of the programs.
#
# They are Debian's packages.  They are not installed, because that would start
# services; the programs are unpacked next to the servers.
set -euo pipefail
# shellcheck source=tools/lib.sh
. "$(dirname "$0")/lib.sh"

packages=(prometheus prometheus-sql-exporter prometheus-postgres-exporter)
directory=$cache/exporters

command -v dpkg-deb >/dev/null || die "this is not Debian or Ubuntu"
mkdir -p "$cache"
exec 8>>"$cache/exporters.lock"
flock 8
if [ ! -e "$directory/.complete" ]; then
	say "unpacking ${packages[*]} in $directory"
	rm -rf "$directory"
	mkdir -p "$directory/packages"
	cd "$directory/packages"
	quietly apt-get -q download "${packages[@]}" || die "apt-get download ${packages[*]} failed (see above)"
	for package in *.deb; do
		dpkg-deb -x "$package" "$directory"
	done
	cd - >/dev/null
	rm -r "$directory/packages"
	touch "$directory/.complete"
fi
echo "$directory/usr/bin"
