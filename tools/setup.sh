#!/bin/bash
# Sets up whatever is missing, then runs a command, if one is given, with Weft
# built and installed.
#
# usage: tools/setup.sh assert|release [COMMAND [ARGUMENT]...]
#
# This script does what needs the rights of the caller: it installs packages
# and copies the tree to a place that an ordinary user may read and write.  The
# rest is run-in-copy.sh, in that copy and as that user.
set -euo pipefail
# shellcheck source=tools/lib.sh
. "$(dirname "$0")/lib.sh"

flavour=${1:?usage: tools/setup.sh assert|release [COMMAND [ARGUMENT]...]}
shift
tree=$(cd "$(dirname "$0")/.." && pwd -P)
# Not "weft": a schema of the name of the user would be first in every search_path.
user=weftdev

packages=(bison bzip2 ca-certificates flex gcc libc6-dev libicu-dev libipc-run-perl liblz4-dev
	libreadline-dev libssl-dev libzstd-dev make patch perl perltidy pkgconf
	python3-venv rsync xz-utils zlib1g-dev)

# A server of the machine will do for the demo and the benchmarks, but the
# tests want assertions and injection points.
choose_server()
{
	local candidate
	if [ -z "${PG_CONFIG:-}" ] && [ "$flavour" = release ]; then
		for candidate in ${PG:-17 18}; do
			candidate=/usr/lib/postgresql/$candidate/bin
			if [ -x "$candidate/postgres" ] && [ -x "$candidate/pgbench" ] &&
				[ -e "$("$candidate/pg_config" --includedir-server)/postgres.h" ]
			then
				PG_CONFIG=$candidate/pg_config
				break
			fi
		done
	fi

	if [ -z "${PG_CONFIG:-}" ]; then
		major=${PG:-17}
		[[ $major =~ ^1[78]$ ]] || die "PG must be 17 or 18, not \"$major\""
		return
	fi
	command -v "$PG_CONFIG" >/dev/null || die "there is no program $PG_CONFIG"
	PG_CONFIG=$(realpath "$(command -v "$PG_CONFIG")")
	major=$("$PG_CONFIG" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
	[ "$major" -ge 17 ] || die "$PG_CONFIG belongs to PostgreSQL $major; Weft needs 17 or later"
	[ "${PG:-$major}" = "$major" ] || die "$PG_CONFIG belongs to PostgreSQL $major, but PG=$PG"
}

installed()
{
	dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^installed //p'
}

apt_install()
{
	quietly "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q \
		-o DPkg::Lock::Timeout=300 install --no-install-recommends "$@" ||
		die "apt-get install failed (see above)"
}

# An old publisher is tested against the machine's own PostgreSQL 15 where there
# is one.  Its package makes and starts a cluster unless told otherwise.
install_old_server()
{
	local conf=/etc/postgresql-common/createcluster.d/weft.conf
	[ -z "$(installed postgresql-15)" ] || return 0
	apt-cache show postgresql-15 >/dev/null 2>&1 || return 0
	say "installing postgresql-15"
	apt_install postgresql-common
	"${sudo[@]}" mkdir -p "${conf%/*}"
	echo "create_main_cluster = false" | "${sudo[@]}" tee "$conf" >/dev/null
	apt_install postgresql-15
	"${sudo[@]}" rm "$conf"
}

install_packages()
{
	local missing
	command -v dpkg-query >/dev/null || die "this is not Debian or Ubuntu; Weft's own set-up knows no other package manager"
	mapfile -t missing < <(comm -23 <(printf '%s\n' "${packages[@]}" | sort) \
		<(installed "${packages[@]}" | sort))

	sudo=()
	if [ "$(id -u)" != 0 ]; then
		if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
			sudo=(sudo -n)
		elif [ ${#missing[@]} != 0 ]; then
			die "packages are missing, and only root can install them: apt-get install ${missing[*]}"
		else
			return 0
		fi
	fi
	if [ ${#missing[@]} != 0 ]; then
		say "installing ${missing[*]}"
		quietly "${sudo[@]}" apt-get -q update || say "apt-get update failed (see above), trying without"
		apt_install "${missing[@]}"
	fi
	[ "$flavour" != assert ] || install_old_server
}

# PostgreSQL refuses to run as root: then an ordinary user owns the cache and
# does all the rest.  Root's own PATH and TMPDIR may lead to places that this
# user cannot read.
as_user=()
own=()
if [ "$(id -u)" = 0 ]; then
	if ! id "$user" >/dev/null 2>&1; then
		say "creating the system user $user, since PostgreSQL does not run as root"
		useradd --system --user-group --home-dir "$cache" --shell /usr/sbin/nologin "$user"
	fi
	as_user=(setpriv --reuid="$user" --regid="$user" --init-groups
		env -u TMPDIR HOME="$cache" USER="$user" LOGNAME="$user"
		PATH=/usr/local/bin:/usr/bin:/bin)
	own=(--chown="$user:$user")
	mkdir -p "$cache"
	chown "$user:$user" "$cache"
fi

choose_server
install_packages

# One copy for each clone and server, so that builds are incremental and
# clones do not meet.  The lock is inherited by all that follows.
work=$cache/work/$major-$flavour-$(printf '%s\n' "$tree" "${PG_CONFIG:-}" | sha256sum | cut -c1-8)
"${as_user[@]}" mkdir -p "$work"
exec 9>>"$work/lock"
if ! flock -n 9; then
	say "waiting for another run in this tree"
	flock 9
fi
# Times are not kept: a file that has changed is newer than its object.
rsync -rlp --checksum --delete "${own[@]}" --exclude=.git --exclude-from="$tree/.gitignore" \
	"$tree/" "$work/tree/"

cd "$work/tree"
exec "${as_user[@]}" env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS \
	WEFT_CACHE="$cache" PG_CONFIG="${PG_CONFIG:-}" \
	tools/run-in-copy.sh "$major" "$flavour" "$@"
