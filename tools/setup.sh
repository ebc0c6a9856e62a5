#!/bin/bash
# Sets up whatever is missing, then runs a command, if one is given, with Weft
# built and installed.
#
# usage: tools/setup.sh assert|release [COMMAND [ARGUMENT]...]
#
# This script does what needs the rights of the caller: it installs packages, and
# copies the tree to a place that an ordinary user may read and write.  Then it
# starts run-in-copy.sh in that copy, as that user.
set -euo pipefail
# shellcheck source=tools/lib.sh
. "$(dirname "$0")/lib.sh"

flavour=${1:?usage: tools/setup.sh assert|release [COMMAND [ARGUMENT]...]}
shift
tree=$(cd "$(dirname "$0")/.." && pwd -P)
# Not "weft": a schema named like the user would be first in every search_path.
user=weftdev

packages=(bison bzip2 ca-certificates flex gcc libc6-dev libicu-dev libipc-run-perl liblz4-dev
	libreadline-dev libssl-dev libzstd-dev make patch perl perltidy pkgconf
	python3-venv rsync xz-utils zlib1g-dev)

# The demo and the benchmarks can use a server of the machine, but the tests need
# assertions and injection points.
choose_server()
{
	local candidate
	if [ -z "${PG_CONFIG:-}" ] && [ "$flavour" = release ]; then
		for candidate in ${PG:-17 18 19}; do
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
		[[ $major =~ ^1[789]$ ]] || die "PG must be 17, 18 or 19, not \"$major\""
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

# The tests with an old publisher use the machine's PostgreSQL 15, if its archives
# have one.  By default, its package creates and starts a cluster; prevent that.
install_old_server()
{
	local conf=/etc/postgresql-common/createcluster.d/weft.conf
	[ -z "$(installed postgresql-15)" ] || return 0
	apt-cache show postgresql-15 >/dev/null 2>&1 || return 0
	say "installing postgresql-15"
	apt_install postgresql-common
	"${sudo[@]}" mkdir -p "${conf%/*}"
	# It must not stay when the installation fails.
	trap '"${sudo[@]}" rm -f /etc/postgresql-common/createcluster.d/weft.conf' EXIT
	echo "create_main_cluster = false" | "${sudo[@]}" tee "$conf" >/dev/null
	apt_install postgresql-15
	"${sudo[@]}" rm "$conf"
	trap - EXIT
}

install_packages()
{
	local missing
	command -v dpkg-query >/dev/null || die "this is not Debian or Ubuntu, the only systems that this script can set up (see CONTRIBUTING.md for others)"
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

# PostgreSQL refuses to run as root.  Therefore, if the caller is root, an ordinary
# user owns the cache and does all the rest.  Root's PATH and TMPDIR may point to
# places that this user cannot read.
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

# Each clone has a copy for each server, so that builds are incremental and clones
# do not disturb each other.  Everything started from here inherits the lock.
work=$cache/work/$major-$flavour-$(printf '%s\n' "$tree" "${PG_CONFIG:-}" | sha256sum | cut -c1-8)
"${as_user[@]}" mkdir -p "$work"
exec 9>>"$work/lock"
if ! flock -n 9; then
	say "waiting for another run in this tree"
	flock 9
fi
copy_source "$tree" "$work/tree" "${own[@]}"

cd "$work/tree"
exec "${as_user[@]}" env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS \
	WEFT_CACHE="$cache" PG_CONFIG="${PG_CONFIG:-}" \
	tools/run-in-copy.sh "$major" "$flavour" "$@"
