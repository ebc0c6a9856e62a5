#!/bin/sh
# What the image of containers/Containerfile does.
#
# usage: weft-entry demo|demo-group|publisher|subscriber|load|COMMAND [ARGUMENT]...
#   demo, demo-group   run a demo, with servers of its own, and end
#   publisher          a server with pgbench's tables in the database "shop", and a publication
#   subscriber         a server that subscribes to the one on the host "publisher"
#   load               writes to that publisher until it is stopped
set -eu

bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
PATH=$bin:$PATH
data=/var/lib/weft/data
export PGUSER=postgres PGDATABASE=postgres

# Makes a server that trusts everyone: only the other containers reach it.
create()
{
	initdb --pgdata="$data.new" --username=postgres --auth=trust --encoding=UTF8 --no-locale >/dev/null
	echo "host all,replication all all trust" >>"$data.new/pg_hba.conf"
	{
		echo "unix_socket_directories = '/tmp'"
		echo "shared_preload_libraries = 'weft'"
		echo "wal_level = logical"
		echo "max_worker_processes = 24"
		if postgres --describe-config | grep -q '^output_plugin_libraries	'; then
			echo "output_plugin_libraries = 'pgoutput, test_decoding, weft'"
		fi
	} >>"$data.new/postgresql.conf"
	# Until it is complete, it listens on the socket alone, and the others wait.
	pg_ctl start --wait --silent --pgdata="$data.new" --log=/tmp/create.log -o "-c listen_addresses="
	"fill_$1"
	pg_ctl stop --wait --silent --pgdata="$data.new"
	mv "$data.new" "$data"
}

sql() { psql -q -X -h /tmp -v ON_ERROR_STOP=1 "$@"; }

fill_publisher()
{
	createdb -h /tmp shop
	pgbench -h /tmp -i -q -s 10 shop
	sql -d shop -c "CREATE PUBLICATION shop FOR ALL TABLES"
}

fill_subscriber()
{
	# An attempt that was interrupted may have left the slot.
	sql -h publisher -d shop -c "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
		WHERE slot_name = 'shop' AND NOT active" >/dev/null
	createdb -h /tmp shop
	sql -d shop -c "CREATE EXTENSION weft" \
		-c "SELECT object FROM weft.copy_schema('host=publisher user=postgres dbname=shop', '{shop}')" \
		-c "CREATE SUBSCRIPTION shop CONNECTION 'host=publisher user=postgres dbname=shop' PUBLICATION shop"
}

serve()
{
	rm -rf "$data.new"
	[ -d "$data" ] || create "$1"
	exec postgres -D "$data" -c "listen_addresses=*"
}

case ${1:-demo} in
	demo) exec python3 /usr/share/weft-cli/demo/demo.py ;;
	demo-group) exec python3 /usr/share/weft-cli/demo/demo_group.py ;;
	publisher | subscriber) serve "$1" ;;
	load) exec pgbench -h publisher -n -c 4 -j 2 -R 500 -P 10 -T 1000000 shop ;;
	*) exec "$@" ;;
esac
