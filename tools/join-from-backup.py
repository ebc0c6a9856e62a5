#!/usr/bin/env python
"""Joins a node from a base backup of a member, and compares the time with pg_basebackup's.

    PG=17 tools/setup.sh release python tools/join-from-backup.py /var/tmp/join --scale 340

Members a and b are written to all the time.  Each repeat makes a plain base backup of a, which is
removed again, and then lets another node join from a backup: announcing it, pg_basebackup, start,
promotion, and the join until the node is a member.  In the end the rows of all members are
compared.  fsync is on; both kinds of backups flush what they have written.  With --setup, the
members are left running, so that --measure can be run later, alone on the machine.  The
directory must not exist, unless --measure is given; it is removed in the end.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from demo_common import DemoError, Server, compare, offer_plugin, run, value_of, wait_until

GROUP = "g"
SETTINGS = """
    fsync = on
    shared_buffers = 1GB
    max_wal_size = 8GB
    wal_level = logical
    track_commit_timestamp = on
    shared_preload_libraries = 'weft'
    max_worker_processes = 60
    max_logical_replication_workers = 20
    max_replication_slots = 20
    max_wal_senders = 20
    """
TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "note")
SCRIPT = """
\\set aid random(1, 100000 * {scale})
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;
INSERT INTO note VALUES (weft.snowflake_nextval('note_id'), '{name}');
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--scale", type=int, default=340, help="pgbench's: 340 are 5 GB")
    parser.add_argument("--rate", type=int, default=50, help="transactions/s on a and on b")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--setup", action="store_true", help="only create the members")
    only.add_argument("--measure", action="store_true", help="with members that --setup has left")
    return parser.parse_args()


def server(directory: Path, name: str) -> Server:
    return Server(directory / name, SETTINGS + offer_plugin())


def backup(source: Server, data: Path, *options: str) -> None:
    run("pg_basebackup", *source.socket_options, "-D", str(data), "-c", "fast", *options)


def join_from_backup(node: Server, source: Server) -> dict[str, float]:
    """Returns when each step was completed, in seconds."""
    node.directory.mkdir()
    begin = time.monotonic()
    times = {}

    def done(step: str) -> None:
        times[step] = round(time.monotonic() - begin, 2)

    with source.connect() as connection:
        value_of(
            connection,
            "SELECT weft.prepare_join_from_backup(%s, %s)::text", node.name, node.conninfo,
        )  # fmt: skip
    done("announced")
    backup(source, node.data, "-R")
    done("backup")
    node.configure()
    node.start()
    run("pg_ctl", "promote", "-w", "-D", str(node.data))
    done("promoted")
    with node.connect() as connection:
        connection.execute(
            "SELECT weft.join_node_group(%s, from_backup := true)", [source.conninfo]
        )
        connection.execute("SELECT weft.wait_for_join_completion('10 min')")
    done("joined")
    return times


def set_up(a: Server, b: Server, scale: int) -> None:
    a.directory.parent.mkdir()
    a.create()
    a.start()
    run("pgbench", *a.socket_options, "-i", "-q", "-s", str(scale), "postgres")
    with a.connect() as connection:
        connection.execute("DROP TABLE pgbench_history")
        connection.execute("CREATE TABLE note (id bigint PRIMARY KEY, node text)")
        connection.execute("CREATE SEQUENCE note_id")
        connection.execute("CREATE EXTENSION weft")
        connection.execute("SELECT weft.create_node('a', %s)", [a.conninfo])
        connection.execute("SELECT weft.create_node_group(%s)", [GROUP])
        connection.execute("VACUUM")
        connection.execute("CHECKPOINT")
    join_from_backup(b, a)


def start_load(node: Server, scale: int, rate: int) -> "subprocess.Popen[bytes]":
    script = node.directory / "load.sql"
    script.write_text(SCRIPT.format(scale=scale, name=node.name))
    return subprocess.Popen(
        ["pgbench", *node.socket_options, "-n", "-T", "100000", "-c", "2", "-R", str(rate),
         "--max-tries=100", "-f", str(script), "postgres"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def wait_for_all(members: list[Server]) -> None:
    for node in members:
        with node.connect() as connection:
            for other in members:
                if other is not node:
                    connection.execute(
                        "SELECT weft.wait_for_subscription(%s, '10 min')",
                        [f"weft_{GROUP}_{other.name}_{node.name}"],
                    )


def measure(arguments: argparse.Namespace, a: Server, b: Server) -> None:
    directory = arguments.directory
    members = [a, b]
    figures = []
    with a.connect() as connection:
        size = value_of(connection, "SELECT sum(pg_database_size(oid)) FROM pg_database")
    print(f"{float(size) / 1e9:.2f} GB, {arguments.rate} transactions/s on a and on b", flush=True)
    loads = [start_load(node, arguments.scale, arguments.rate) for node in members]
    try:
        for number in range(arguments.repeats):
            begin = time.monotonic()
            backup(a, directory / "plain")
            plain = time.monotonic() - begin
            shutil.rmtree(directory / "plain")
            node = server(directory, "cdefghij"[number])
            members.append(node)
            times = join_from_backup(node, a)
            figures.append({"pg_basebackup": round(plain, 2), **times})
            print(figures[-1], f"ratio {times['joined'] / plain:.2f}", flush=True)
    finally:
        for load in loads:
            load.terminate()
            load.wait()
    wait_until("the load has ended", lambda: all(idle(node) for node in members))
    wait_for_all(members)
    rows = compare(members, TABLES)
    print("equal on", ", ".join(node.name for node in members), rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


def idle(node: Server) -> bool:
    with node.connect() as connection:
        return bool(
            value_of(
                connection,
                "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'",
            )
        )


def main() -> int:
    arguments = parse()
    directory = arguments.directory.resolve()
    arguments.directory = directory
    a, b = server(directory, "a"), server(directory, "b")
    try:
        if not arguments.measure:
            set_up(a, b, arguments.scale)
        if not arguments.setup:
            measure(arguments, a, b)
    except DemoError as error:
        print(error)
        return 1
    finally:
        if not arguments.setup:
            for path in sorted(directory.glob("[a-j]")):
                server(directory, path.name).stop()
            shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
