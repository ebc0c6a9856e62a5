#!/bin/bash
# Builds, checks, installs and purges the Debian packages of this tree, in chroots of the suites of
# Debian that have a server for which Weft can be built.
#
# usage: tools/package-trial.sh [SUITE]...
#
# Without arguments, the suites are trixie (PostgreSQL 17) and forky (18).  For each suite:
#   bootstrap     a bare chroot, from the archive that this machine uses
#   dependencies  of the build, in a copy of it, and the control file for the suite's servers
#   build         source and packages, by an ordinary user without a network, from "make dist"
#   image         the files of an extension image for CloudNativePG (from PostgreSQL 18 on), there
#   pgxn          "pgxn install" of the other archive of "make dist", with what docs/install.md names
#   lintian       errors and warnings end the trial
#   tests         what autopkgtest needs, in another copy, with packages from a local repository
#   autopkgtest   debian/tests with the packages, without a network
#   install       into a third copy: nothing but what apt installs for the packages
#   use           a cluster that loads Weft, the command weft, and both demos
#   purge         nothing that belongs to the packages may be left
#   image-use     replication between two servers that find Weft in that image alone
#
# The machine itself stays as it is, but for mmdebstrap, which is installed if it is missing.  Only
# root can make chroots, therefore this is not part of "make check".
#
# Each command runs in namespaces of its own (mounts, processes, and unless it must install
# packages, the network), so that nothing survives it, and ports are free.
#
# exit status: 0 if all steps passed, 77 if this machine cannot do it, otherwise 1
set -euo pipefail
# shellcheck source=tools/lib.sh
. "$(dirname "$0")/lib.sh"

tree=$(cd "$(dirname "$0")/.." && pwd -P)
suites=("$@")
[ ${#suites[@]} != 0 ] || suites=(trixie forky)
# Settings of apt without which the archives of this machine may not be usable.
apt_settings=(Acquire::Check-Valid-Until Acquire::Check-Date Acquire::http::Proxy Acquire::https::Proxy)

skip()
{
	echo "skipped: $*"
	exit 77
}

check_machine()
{
	[ "$(id -u)" = 0 ] || skip "only root can make chroots, and this is the user $(id -un)"
	[ -n "$(archives)" ] || skip "apt knows no archive of Debian from which a chroot could be made"
	unshare --mount --pid --net --ipc --fork true 2>/dev/null ||
		skip "this system lets root make no namespaces, as in an unprivileged container"
	[ -e "$tree/.git" ] || skip "the packages are built from \"make dist\", which needs a clone made by git"
	if ! command -v mmdebstrap >/dev/null || ! command -v ip >/dev/null; then
		say "installing mmdebstrap"
		quietly apt-get -q update || true
		quietly env DEBIAN_FRONTEND=noninteractive apt-get -y -q \
			install --no-install-recommends mmdebstrap iproute2 ||
			skip "mmdebstrap cannot be installed here (see above)"
	fi
}

# Runs a step of package-trial/steps.sh in a chroot.
# usage: enter CHROOT network|alone STEP
enter()
{
	local network=(--net)
	[ "$2" = alone ] || network=()
	# shellcheck disable=SC2016 # expanded by the inner shell
	unshare --mount --pid --fork --kill-child --ipc --uts "${network[@]}" bash -euc '
		root=$1 step=$2 debs=$3
		mount --rbind /dev "$root/dev"
		mount -t tmpfs tmpfs "$root/dev/shm"
		mount -t proc proc "$root/proc"
		mount --bind "$debs" "$root/var/cache/apt/archives"
		ip link set lo up
		exec chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
			HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive bash -euo pipefail /trial/steps.sh "$step"
	' enter "$1" "$3" "$debs"
}

# What follows is called with a suite, whose files are in $place.
step_bootstrap()
{
	local archive setting value options=() sources=()
	for archive in $(archives); do
		sources+=("deb $archive $suite main")
	done
	for setting in "${apt_settings[@]}"; do
		value=
		eval "$(apt-config shell value "$setting")"
		[ -z "$value" ] || options+=("--aptopt=$setting \"$value\"")
	done
	mmdebstrap --mode=root --variant=minbase --skip=essential/unlink "${options[@]}" \
		--setup-hook="mkdir -p \"\$1/var/cache/apt/archives\"" \
		--setup-hook="sync-in $debs /var/cache/apt/archives" \
		--customize-hook="sync-out /var/cache/apt/archives $debs" \
		--dpkgopt=force-unsafe-io "$suite" "$place/base.tar" "${sources[@]}"
}

# Makes a chroot from the bare one, with the given files of the trial.
new_chroot()
{
	local root=$place/$1
	shift
	mkdir -p "$root"
	tar -C "$root" -xf "$place/base.tar"
	mkdir -p "$root/trial"
	# The chroot is removed in any case.
	echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/package-trial"
	cp -r "$tree"/tools/package-trial/. "$@" "$root/trial/"
}

step_dependencies()
{
	new_chroot build "$dist"/weft-*
	enter "$place/build" network dependencies
}

step_build()
{
	enter "$place/build" alone build
	mv "$place/build/trial/out" "$place/repository"
}

step_pgxn()
{
	new_chroot pgxn "$dist"/weft-*
	enter "$place/pgxn" network pgxn_packages
	enter "$place/pgxn" alone pgxn
}

step_image() { enter "$place/build" alone image; }

step_tests()
{
	new_chroot tests "$place/repository"
	enter "$place/tests" network tests
}

step_lintian() { enter "$place/tests" alone lintian; }

step_autopkgtest() { enter "$place/tests" alone autopkgtest; }

step_install()
{
	new_chroot bare "$place/repository"
	enter "$place/bare" network install
}

step_use() { enter "$place/bare" alone use; }

step_purge() { enter "$place/bare" alone purge; }

step_image_use()
{
	cp -r "$place/build/trial/image" "$place/bare/trial/"
	enter "$place/bare" alone image_use
}

passed=0 failed=0 failures=()
# Runs a step, the name of a function.  It is not called within a condition, where "set -e" does not hold.
run_step()
{
	local name=$1 begun=$SECONDS log=$logs/$suite-$1
	set +e
	(set -e; "step_${name//-/_}") >"$log" 2>&1 </dev/null
	status=$?
	set -e
	sed -n "s/^FIGURE: /        /p" "$log"
	if [ $status = 0 ]; then
		echo "ok      $suite $name ($((SECONDS - begun)) s)"
		((passed += 1))
	else
		tail -n 40 "$log"
		echo "FAILED  $suite $name ($((SECONDS - begun)) s)"
		((failed += 1))
		failures+=("$suite/$name")
	fi
}

# Each step needs those before it, but the image only those that make it.
try_suite()
{
	local step
	suite=$1 place=$work/$1 debs=$cache/packages/debs-$1
	mkdir -p "$place" "$debs"
	for step in bootstrap dependencies build image pgxn tests lintian autopkgtest install use purge image-use; do
		if [ $step = image-use ] && [ ! -d "$place/build/trial/image" ]; then
			echo "skipped $suite $step (extension_control_path came with PostgreSQL 18)"
			continue
		fi
		run_step $step
		[ $status = 0 ] || break
	done
	rm -rf --one-file-system "$place"
}

check_machine
logs=$cache/packages/log
mkdir -p "$cache/packages"
exec 9>>"$cache/packages/lock"
flock -n 9 || { say "waiting for another trial of packages"; flock 9; }
rm -rf "$logs" "$cache"/packages/work.*
mkdir "$logs"
work=$(mktemp -d "$cache/packages/work.XXXXXX")
chmod 755 "$work"
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM

# What git knows, with the changes that are not committed yet.
dist=$work/dist
changes=$(git -c safe.directory="$tree" -C "$tree" stash create)
"$tree/tools/make-dist.sh" "$dist" "$changes"
for suite in "${suites[@]}"; do
	try_suite "$suite"
done
echo
echo "logs in $logs"
[ ${#failures[@]} = 0 ] || echo "failed: ${failures[*]}"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
