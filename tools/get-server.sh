#!/bin/bash
# Builds the PostgreSQL server for the tests, the demo and the benchmarks, once,
# into the cache.  Prints the path of its pg_config.
#
# usage: tools/get-server.sh MAJOR FLAVOUR
#   assert   assertions and injection points, for the tests
#   release  optimised, for the demo and the benchmarks
#   source   only the unpacked source; prints its path
set -euo pipefail
# shellcheck source=tools/lib.sh
. "$(dirname "$0")/lib.sh"

major=$1
flavour=$2
checksums=$(cd "$(dirname "$0")" && pwd -P)/source-checksums

options=(--enable-debug --enable-tap-tests
	--with-icu --with-lz4 --with-openssl --with-zstd
	CFLAGS='-O2 -g -fno-omit-frame-pointer')
case $flavour in
	assert) options+=(--enable-cassert --enable-injection-points) ;;
	release | source) ;;
	*) die "unknown flavour \"$flavour\"" ;;
esac
hash=$(printf '%s\n' "${options[@]}" | sha256sum | cut -c1-8)

# The marker is created last, so that an interrupted build is repeated.
built()
{
	local marker
	marker=$(compgen -G "$cache/servers/pg-$major[.a-z]*-$flavour-$hash/.complete" | sort -V | tail -n 1) ||
		return 0
	echo "${marker%/.complete}/bin/pg_config"
}

# Fetches, from the place of an archive that could not be fetched, another version whose
# checksum is known: for some hours after a minor release, an index can name files that its
# mirror does not have yet.
fetch_known_source()
{
	local place=${1%/*} checksum name
	[ -n "$place" ] || return 1
	while read -r checksum name; do
		if /usr/lib/apt/apt-helper download-file "$place/$name" "$name" "SHA256:$checksum"; then
			return 0
		fi
		rm -f "$name"
	done < <(grep " postgresql-${major}_" "$checksums" | tac)
	return 1
}

# Downloads the source into the current directory, from the archives of the machine's release
# and of those that follow it, and from those of the given further suites.
download_source()
{
	local apt=$PWD/apt further=$1
	rm -rf "$apt"
	mkdir -p "$apt"/{lists/partial,cache/archives/partial,sources.list.d}
	write_sources "$apt" "$further"
	local options=(-o Dir::Etc::sourcelist="$apt/sources.list"
		-o Dir::Etc::sourceparts="$apt/sources.list.d"
		-o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt/cache"
		-o Acquire::Languages=none -o Acquire::Retries=3)

	# An archive without source packages is no obstacle if another has them.
	apt-get "${options[@]}" -q update </dev/null || true
	local source=(apt-get "${options[@]}" -q source --tar-only)
	"${source[@]}" --download-only "postgresql-$major" </dev/null ||
		fetch_known_source "$("${source[@]}" --print-uris "postgresql-$major" 2>/dev/null |
			sed -n "s/^'\([^']*\)'.*/\1/p")"
}

# apt verifies signatures and checksums.  Only the released tarball is used, because
# the packager's patches adapt the server to the packager's directories.
fetch_source()
{
	local dir=$1 version
	cd "$dir"
	# A major version that is not released yet is in the experimental suite only.
	if ! download_source "" >apt.log 2>&1 && ! download_source experimental >>apt.log 2>&1; then
		tail -n 20 apt.log >&2
		die "no source of PostgreSQL $major in the archives that apt knows (see above); install a server with its development files and give its pg_config: PG_CONFIG=..."
	fi
	version=$(ls postgresql-"$major"_*.orig.tar.*)
	version=${version#*_}
	version=${version%.orig.tar.*}
	# As the server names it: 19~rc1 is 19rc1.
	version=${version//\~/}
	mkdir unpacked
	tar -xf postgresql-"$major"_*.orig.tar.* -C unpacked --strip-components=1
	mkdir -p "$cache/sources"
	rm -rf "$cache/sources/postgresql-$version"
	mv unpacked "$cache/sources/postgresql-$version"
}

latest_source()
{
	compgen -G "$cache/sources/postgresql-$major[.a-z]*" | sort -V | tail -n 1 || true
}

# Prints the newest unpacked source, fetching one if there is none.
ensure_source()
{
	if [ -z "$(latest_source)" ]; then
		say "fetching the source of PostgreSQL $major"
		(fetch_source "$temp")
	fi
	latest_source
}

build_server()
{
	local source version prefix
	source=$(ensure_source)
	version=${source##*-}
	prefix=$cache/servers/pg-$version-$flavour-$hash
	say "building PostgreSQL $version ($flavour) in $prefix; this takes some minutes"
	rm -rf "$prefix"
	mkdir "$temp/build"

	# One chain, since "set -e" does not hold within a condition.
	if ! (
		cd "$temp/build" &&
			"$source/configure" -q --prefix="$prefix" "${options[@]}" &&
			make -s -j"$(nproc)" world-bin &&
			make -s install-world-bin &&
			make -s -C src/tools/pg_bsd_indent install &&
			{ [ "$flavour" = release ] || make -s -C src/test/modules/injection_points install; }
	) >"$temp/log" 2>&1 </dev/null 9>&-; then
		cp "$temp/log" "$cache/servers/build.log"
		tail -n 30 "$temp/log" >&2
		die "PostgreSQL $version could not be built; the complete output is in $cache/servers/build.log"
	fi
	touch "$prefix/.complete"
}

have_it()
{
	if [ "$flavour" = source ]; then latest_source; else built; fi
}

if [ -z "$(have_it)" ]; then
	mkdir -p "$cache/servers"
	exec 9>>"$cache/servers/.lock"
	if ! flock -n 9; then
		say "waiting for another build of a server"
		flock 9
	fi
	rm -rf "$cache"/build.*
	temp=$(mktemp -d "$cache/build.XXXXXX")
	trap 'rm -rf "$temp"' EXIT
	trap 'exit 1' INT TERM
	case $flavour in
		source) ensure_source >/dev/null ;;
		*) [ -n "$(built)" ] || build_server ;;
	esac
fi
have_it
