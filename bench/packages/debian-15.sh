#!/bin/bash
# Fetches Debian's packages of PostgreSQL 15 with Slony-I and Londiste, once, into the cache;
# prints the directory that they are unpacked in.  Nothing is installed into the system: so it
# needs no rights, and none of the services in these packages is ever started.
#
# usage: bench/packages/debian-15.sh    (in WEFT_CACHE, as an ordinary user)
set -euo pipefail
tools=$(cd "$(dirname "$0")/../../tools" && pwd -P)
# shellcheck source=tools/lib.sh
. "$tools/lib.sh"

packages=(postgresql-15 postgresql-client-15
	postgresql-15-slony1-2 slony1-2-bin
	postgresql-15-pgq3 postgresql-15-pgq-node postgresql-15-londiste-sql pgqd python3-londiste)
key=$(printf '%s\n' "${packages[@]}" | sha256sum | cut -c1-8)
root=$cache/debian-15-$key

fetch()
{
	local apt=$PWD/apt needed package
	mkdir -p "$apt"/{lists/partial,cache/archives/partial} debs
	local options=(-q -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt/cache"
		-o Debug::NoLocking=1 -o Acquire::Languages=none -o Acquire::Retries=3)

	# Lists of our own: those of the system may be old, and only root may renew them.
	apt-get "${options[@]}" update >apt.log 2>&1 </dev/null || true
	for package in "${packages[@]}"; do
		apt-cache "${options[@]}" show "$package" >/dev/null 2>&1 ||
			die "the archives that apt knows have no package $package (Debian 12 has it)"
	done
	# What the system has already need not be fetched, but for the server, which gets
	# extensions that the system's own is to be spared.
	needed=$(LC_ALL=C apt-get "${options[@]}" -s --no-install-recommends install "${packages[@]}" \
		2>>apt.log | sed -n 's/^Inst \([^ ]*\) .*/\1/p') || true
	# shellcheck disable=SC2086 # a list of words
	if ! (cd debs && apt-get "${options[@]}" download $(printf '%s\n' "${packages[@]}" $needed |
		sort -u)) >>apt.log 2>&1 </dev/null
	then
		tail -n 10 apt.log >&2
		die "the packages of PostgreSQL 15, Slony-I and Londiste could not be fetched (see above)"
	fi
}

if [ ! -e "$root/.complete" ]; then
	command -v dpkg-deb >/dev/null || die "this is not Debian: there is no dpkg-deb"
	mkdir -p "$cache"
	exec 7>>"$cache/debian-15.lock"
	flock 7
	temp=$(mktemp -d "$cache/fetch.XXXXXX")
	trap 'rm -rf "$temp"' EXIT
	trap 'exit 1' INT TERM
	cd "$temp"
	fetch
	mkdir files
	for deb in debs/*.deb; do
		dpkg-deb -x "$deb" files
	done
	rm -rf "$root"
	mv files "$root"
	touch "$root/.complete"
fi
echo "$root"
