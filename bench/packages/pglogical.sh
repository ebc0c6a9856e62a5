#!/bin/bash
# Builds pglogical for a server, once, into the cache; prints the directory that
# holds its files, each below the absolute path that it has in the server.
#
# usage: bench/packages/pglogical.sh PG_CONFIG    (in WEFT_CACHE, as an ordinary user)
set -euo pipefail
tools=$(cd "$(dirname "$0")/../../tools" && pwd -P)
# shellcheck source=tools/lib.sh
. "$tools/lib.sh"

pg_config=$1
# Everything that pg_config says: another server, or another build of it, is another key.
key=$("$pg_config" | sha256sum | cut -c1-8)
root=$cache/pglogical

# Only the tarball as released is wanted.  The newest may be listed and gone.
fetch_source()
{
	local apt=$PWD/apt version
	mkdir -p "$apt"/{lists/partial,cache/archives/partial,sources.list.d}
	write_sources "$apt"
	local options=(-q -o Dir::Etc::sourcelist="$apt/sources.list"
		-o Dir::Etc::sourceparts="$apt/sources.list.d"
		-o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt/cache"
		-o Acquire::Languages=none -o Acquire::Retries=3)

	# An archive without source packages is no obstacle if another has them.
	apt-get "${options[@]}" update >apt.log 2>&1 </dev/null || true
	apt-cache "${options[@]}" showsrc pglogical 2>>apt.log |
		sed -n 's/^Version: //p' | sort -rVu >versions
	while read -r version; do
		if apt-get "${options[@]}" source --download-only --tar-only "pglogical=$version" \
			>>apt.log 2>&1 </dev/null
		then
			return 0
		fi
	done <versions
	tail -n 5 apt.log >&2
	die "no source of pglogical in the archives that apt knows"
}

if ! compgen -G "$root/*-$key/.complete" >/dev/null; then
	mkdir -p "$root"
	exec 7>>"$root/.lock"
	flock 7
	temp=$(mktemp -d "$root/build.XXXXXX")
	trap 'rm -rf "$temp"' EXIT
	trap 'exit 1' INT TERM
	cd "$temp"
	fetch_source
	version=$(ls pglogical_*.orig.tar.*)
	version=${version#*_}
	version=${version%.orig.tar.*}
	mkdir source
	tar -xf pglogical_*.orig.tar.* -C source --strip-components=1
	for goal in all install; do
		quietly make -s -C source -j"$(nproc)" USE_PGXS=1 with_llvm=no PG_CONFIG="$pg_config" \
			DESTDIR="$temp/files" "$goal" || die "pglogical $version could not be built (see above)"
	done
	echo "$version" >files/.version
	rm -rf "$root/$version-$key"
	mv files "$root/$version-$key"
	touch "$root/$version-$key/.complete"
fi
marker=$(compgen -G "$root/*-$key/.complete" | sort -V | tail -n 1)
echo "${marker%/.complete}"
