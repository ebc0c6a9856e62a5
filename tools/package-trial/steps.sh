#!/bin/bash
# The steps of package-trial.sh that run within a chroot, as root.
# usage: steps.sh STEP
# Lines that begin with "FIGURE: " are shown by package-trial.sh.
set -euo pipefail
cd /trial

figure() { echo "FIGURE: $*"; }

# An ordinary user: PostgreSQL does not run as root, and neither should a build.
as_tester() { setpriv --reuid=tester --regid=tester --clear-groups env HOME=/home/tester USER=tester LOGNAME=tester "$@"; }

add_tester()
{
	useradd --create-home --shell /bin/sh tester
}

step_dependencies()
{
	add_tester
	apt-get -q update
	apt-get -q -y install --no-install-recommends build-essential debhelper postgresql-server-dev-all
	mkdir source
	tar -C source -xzf weft-*.tar.gz --strip-components=1
	cd source
	pg_buildext updatecontrol
	apt-get -q -y build-dep --no-install-recommends ./
	rm -rf /trial/source
}

step_build()
{
	local version
	version=$(basename weft-*.tar.gz .tar.gz)
	version=${version#weft-}
	mkdir source out
	cp "weft-$version.tar.gz" "weft_$version.orig.tar.gz"
	tar -C source -xzf "weft_$version.orig.tar.gz" --strip-components=1
	chown -R tester: /trial
	cd source
	as_tester pg_buildext updatecontrol
	as_tester env DEB_BUILD_OPTIONS="parallel=$(nproc)" dpkg-buildpackage -us -uc
	cd ..
	mv ./*.deb ./*.dsc ./*.debian.tar.* ./*.orig.tar.gz ./*.changes ./*.buildinfo out/
	(cd out && dpkg-scanpackages --multiversion . >Packages)
	local package
	for package in out/*.deb; do
		figure "$(basename "$package"): $(stat -c %s "$package") bytes, $(dpkg-deb -c "$package" | grep -c '^-') files"
	done
	# Each supported server must have its package.
	local major
	for major in $(cd source && pg_buildext supported-versions); do
		ls out/postgresql-"$major"-weft_*.deb
		figure "packaged for PostgreSQL $major ($(pg_config_of "$major" --version))"
	done
}

pg_config_of() { local major=$1; shift; "/usr/lib/postgresql/$major/bin/pg_config" "$@"; }

majors() { ls -v /usr/lib/postgresql; }

# What docs/install.md says that a build from source needs, and nothing of the packages'.
step_pgxn_packages()
{
	local servers
	add_tester
	apt-get -q update
	mapfile -t servers < <(apt-cache pkgnames postgresql-server-dev- | grep '[0-9]$')
	apt-get -q -y install --no-install-recommends build-essential "${servers[@]}" libicu-dev liblz4-dev \
		pgxnclient unzip
}

# "pgxn install" builds with the archive alone, outside of git, and installs as root.
step_pgxn()
{
	local major config
	for major in $(majors); do
		config=/usr/lib/postgresql/$major/bin/pg_config
		HOME=/home/tester pgxn install --pg_config "$config" "/trial/$(basename weft-*.zip)"
		cmp "$(pg_config_of "$major" --sharedir)/extension/weft.control" \
			<(unzip -p weft-*.zip '*/weft.control')
		test -e "$(pg_config_of "$major" --pkglibdir)/weft.so"
		figure "pgxn install for PostgreSQL $major: $(stat -c %s "$(pg_config_of "$major" --pkglibdir)/weft.so") bytes"
		rm "$(pg_config_of "$major" --pkglibdir)"/weft.so "$(pg_config_of "$major" --sharedir)"/extension/weft*
	done
}

# The files of an extension image, installed as containers/extension.Containerfile does, from what was
# built for the package.
step_image()
{
	local major
	for major in $(majors); do
		# the first one with extension_control_path
		[ "$major" -ge 18 ] || continue
		mkdir image
		make -s -C "source/build-$major" -f /trial/source/Makefile VPATH=/trial/source PG_CONFIG="/usr/lib/postgresql/$major/bin/pg_config" \
			install DESTDIR=/trial/image pkglibdir=/lib datadir=/share
		# two folders, with nothing but Weft
		[ "$(cd image && find . -type f -not -name '*.sql' | sort | tr '\n' ' ')" = \
			"./lib/weft.so ./share/extension/weft.control " ]
		[ "$(cd image && find . -name '*.sql' | grep -vc '^./share/extension/weft--')" = 0 ]
		figure "extension image for PostgreSQL $major: $(find image -type f | wc -l) files, $(du -sb image | cut -f1) bytes"
	done
}

# The packages are installed as any others are, from an archive.
add_repository()
{
	echo "deb [trusted=yes] file:/trial/repository ./" >/etc/apt/sources.list.d/trial.list
	apt-get -q update
}

# The packages that were built, without those for debuggers.
built() { sed -n 's/^Package: //p' repository/Packages | grep -v dbgsym; }

step_tests()
{
	add_tester
	add_repository
	apt-get -q -y install --no-install-recommends lintian autopkgtest dpkg-dev devscripts
	local packages
	mapfile -t packages < <(built)
	# autopkgtest finds everything installed, and therefore needs no network.
	apt-get -q -y install --no-install-recommends "${packages[@]}"
	mkdir source
	dpkg-source -x repository/*.dsc source/weft
	apt-get -q -y satisfy --no-install-recommends \
		"$(sed -n 's/^Depends: @, //p' source/weft/debian/tests/control)"
	rm -rf source
}

step_lintian()
{
	as_tester lintian --version
	# Nobody has filed a bug that asks Debian for these packages.
	as_tester lintian --info --display-info --fail-on error,warning \
		--suppress-tags initial-upload-closes-no-bugs repository/*.changes
	figure "lintian: no errors, no warnings"
}

step_autopkgtest()
{
	local begun=$SECONDS
	autopkgtest --no-built-binaries --user=tester --output-dir=/trial/autopkgtest \
		repository/*.dsc -- null
	cat autopkgtest/summary
	# A test that ran nothing passes, too.  (autopkgtest's own log has the time before each line.)
	local log=autopkgtest/installcheck-stdout
	grep -q '^# All [0-9]* tests passed' "$log"
	grep -q '^Result: PASS' "$log"
	figure "$(grep -c '^ok .* ms$' "$log") tests of regress and isolation, TAP: $(grep '^Files=' "$log" | cut -d' ' -f1-2) ($((SECONDS - begun)) s)"
}

step_install()
{
	add_tester
	add_repository
	find / -xdev -name '*weft*' -not -path '/trial/*' | grep -v /var/lib/apt/lists/ && return 1
	local packages
	mapfile -t packages < <(built)
	# What a user would type, with nothing installed before.
	apt-get -q -y install "${packages[@]}"
	dpkg -L "${packages[@]}" | grep -v '^/\.$' | sort -u >/trial/installed
	figure "installed: ${packages[*]}; with $(dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n' 'postgresql-[0-9]*' |
		sed -n 's/^installed //p' | grep -v weft | tr '\n' ' ')"
}

weft_packages() { dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^installed \(.*weft.*\)/\1/p'; }

as_postgres() { runuser -u postgres -- "$@"; }

# What docs/install.md says, with the cluster that the server's package has made.
step_use()
{
	local major begun
	for major in $(majors); do
		pg_conftool "$major" main set shared_preload_libraries weft
		pg_conftool "$major" main set wal_level logical
		pg_ctlcluster "$major" main start || pg_ctlcluster "$major" main restart
		as_postgres psql --cluster "$major/main" -XAt -v ON_ERROR_STOP=1 \
			-c 'CREATE EXTENSION weft' -c 'SELECT * FROM weft.health()' \
			-c "SELECT extversion FROM pg_extension WHERE extname = 'weft'" | tee extension
		[ "$(tail -n 1 extension)" = "$(dpkg-query -W -f '${Version}' "postgresql-$major-weft" | sed 's/-.*//')" ]
		as_postgres weft status --timeout 60 -p "$(pg_conftool -s "$major" main show port)"
		# as docs/uninstall.md says
		as_postgres psql --cluster "$major/main" -X -v ON_ERROR_STOP=1 -c 'DROP EXTENSION weft'
		pg_conftool "$major" main remove shared_preload_libraries
		pg_ctlcluster "$major" main restart
	done
	# Nothing is in the PATH that a user's does not have.
	for demo in demo demo_group; do
		begun=$SECONDS
		as_tester python3 "/usr/share/weft-cli/demo/$demo.py" | tee "$demo.out"
		grep -A99 'What to type next' "$demo.out" >closing
		if grep -w make closing; then return 1; fi
		grep -q /usr/share/doc/weft-cli/docs closing
		# the pages and programs that it names are there
		grep -o '/usr/share/[^ ]*' "$demo.out" | sed 's/[.;,]*$//' >named
		while read -r page; do test -e "$page"; done <named
		figure "$demo.py: $(grep -c '✓' "$demo.out") steps ($((SECONDS - begun)) s)"
	done
	figure "$(grep 'a backlog' demo.out | tail -n 1 | tr -s ' ')  (times as fast as PostgreSQL alone: Weft on the subscriber, on both servers)"
}

# Paths of the packages that no other package has.
left()
{
	local path
	while read -r path; do
		if [ -e "$path" ] && ! dpkg -S "$path" >/dev/null 2>&1; then echo "$path"; fi
	done </trial/installed
	find / -xdev -iname '*weft*' -not -path '/trial' -not -path '/trial/*'
	# those that systemd makes
	find /tmp /var/tmp -mindepth 1 -not -path '/tmp/.*-unix'
}

step_purge()
{
	local major packages
	# A server that was running goes on, and starts again without Weft.
	for major in $(majors); do pg_ctlcluster "$major" main start || true; done
	mapfile -t packages < <(weft_packages)
	apt-get -q -y purge "${packages[@]}"
	for major in $(majors); do
		as_postgres psql --cluster "$major/main" -XAt -c 'SELECT 1'
		pg_ctlcluster "$major" main restart
	done
	dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' | grep weft && return 1
	left | tee left
	[ ! -s left ]
	figure "purged: none of $(wc -l <installed) paths is left"
}

# Servers as CloudNativePG configures them: where no other Weft is installed, the image is mounted.
image_server()
{
	local name=$1 port=$2
	initdb --pgdata="$name" --username=postgres --auth=trust --no-sync >/dev/null
	cat >>"$name/postgresql.conf" <<-EOC
		port = $port
		listen_addresses = ''
		unix_socket_directories = '$PWD'
		wal_level = logical
		max_worker_processes = 24
		extension_control_path = '\$system:/extensions/weft/share'
		dynamic_library_path = '\$libdir:/extensions/weft/lib'
		shared_preload_libraries = 'weft'
		output_plugin_libraries = 'pgoutput, test_decoding, weft'
	EOC
	pg_ctl start -w -s -D "$name" -l "$name.log"
}

use_image()
{
	local publisher
	cd "$(mktemp -d)"
	PATH=/usr/lib/postgresql/$(majors | tail -n 1)/bin:$PATH
	export PGHOST=$PWD PGUSER=postgres PGDATABASE=postgres
	publisher="host=$PWD port=5433 user=postgres dbname=postgres"
	image_server publisher 5433
	image_server subscriber 5434
	pgbench -p 5433 -i -q -s 5
	psql -p 5433 -Xq -c 'CREATE PUBLICATION p FOR ALL TABLES'
	psql -p 5434 -X -v ON_ERROR_STOP=1 -c 'CREATE EXTENSION weft' \
		-c "SELECT count(*) FROM weft.copy_schema('$publisher', '{p}')" \
		-c "CREATE SUBSCRIPTION s CONNECTION '$publisher' PUBLICATION p" \
		-c "SELECT weft.wait_for_subscription('s', '1 minute')"
	pgbench -p 5433 -n -c 4 -T 5 >pgbench.out
	psql -p 5434 -X -v ON_ERROR_STOP=1 -c "SELECT weft.wait_for_subscription('s', '1 minute')" \
		-c "CALL weft.compare_subscription('s')" >compared 2>&1
	cat compared
	grep -q '4 of 4 tables were compared, 0 differences' compared
	[ "$(psql -p 5433 -XAt -c "SELECT plugin FROM pg_replication_slots WHERE slot_name = 's'")" = weft ]
	psql -p 5434 -XAt -c "SELECT transactions FROM weft.stat_subscription WHERE native_reason IS NULL" >applied
	[ "$(cat applied)" -gt 0 ]
	figure "extension image: $(cat applied) transactions by Weft's writers, 4 tables compared, 0 differences"
	pg_ctl stop -s -D subscriber
	pg_ctl stop -s -D publisher
}

step_image_use()
{
	mkdir -p /extensions/weft
	mount --bind -o ro /trial/image /extensions/weft
	test -z "$(find /usr/lib/postgresql /usr/share/postgresql -name '*weft*')"
	as_tester bash -euo pipefail /trial/steps.sh inside_image
}

step_inside_image() { use_image; }

"step_$1"
