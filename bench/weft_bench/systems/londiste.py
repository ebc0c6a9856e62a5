"""Londiste, from Debian's packages, on the PostgreSQL that they belong to."""

from __future__ import annotations

import psycopg

from ..daemon import Daemon
from ..errors import run
from ..pair import Pair
from ..server import Server
from .base import Look, Report, System, nothing, wait_for_tables

QUEUE = "bench"


class Londiste(System):
    name = "londiste"
    build_name = "debian-15"
    remote = False
    queues = ("pgq", "pgq_node", "londiste")

    def refusal(self, scenario: str) -> str | None:
        if scenario == "io-drain":
            return "PostgreSQL 15 has no debug_io_direct"
        return None

    def configuration(self, pair: Pair, server: Server) -> str:
        return str(pair.directory / f"londiste-{server.name}.ini")

    def command(self, pair: Pair, server: Server, *arguments: str) -> None:
        build = pair.build
        run(
            build.tool("londiste"), self.configuration(pair, server), *arguments,
            environment=build.environment,
        )  # fmt: skip

    def configure(self, pair: Pair) -> None:
        for server in pair.servers:
            with open(self.configuration(pair, server), "w") as file:
                file.write(
                    f"[londiste]\njob_name = {server.name}\ndb = {server.conninfo}\n"
                    f"queue_name = {QUEUE}\nlogfile = {pair.directory}/{server.name}-worker.log\n"
                    f"pidfile = {pair.directory}/{server.name}-worker.pid\n"
                )
        base = pair.publisher.conninfo.replace(" dbname=postgres", "")
        (pair.directory / "pgqd.ini").write_text(
            f"[pgqd]\nbase_connstr = {base}\ninitial_database = postgres\n"
            f"database_list = postgres\nlogfile = {pair.directory}/ticker.log\n"
            f"pidfile = {pair.directory}/pgqd.pid\n"
        )

    def prepare(self, pair: Pair) -> None:
        self.configure(pair)
        there, here = pair.servers
        self.command(pair, there, "create-root", "publisher", there.conninfo)
        self.command(
            pair, here, "create-leaf", "subscriber", here.conninfo,
            f"--provider={there.conninfo}",
        )  # fmt: skip
        build = pair.build
        pair.start_daemon("pgqd", build.tool("pgqd"), str(pair.directory / "pgqd.ini"))
        self.start_worker(pair, there)
        self.daemon = self.start_worker(pair, here)
        self.add_tables(pair, there)

    def add_tables(self, pair: Pair, server: Server, *how: str) -> None:
        tables = [f"public.{table}" for table in pair.contents.all_tables]
        self.command(pair, server, "add-table", *how, *tables)

    def start_worker(self, pair: Pair, server: Server) -> Daemon:
        return pair.start_daemon(
            f"{server.name}'s worker", pair.build.tool("londiste"),
            self.configuration(pair, server), "worker",
        )  # fmt: skip

    def wait_until_in_sync(self, pair: Pair, at: Report = nothing, look: Look = nothing) -> None:
        wait_for_tables(
            pair, "SELECT count(*) > 0 AND bool_and(merge_state IS NOT DISTINCT FROM 'ok') "
            "FROM londiste.table_info WHERE local",
            "Londiste's tables do not get into sync", at, look,
        )  # fmt: skip

    def connect(self, pair: Pair) -> None:
        self.add_tables(pair, pair.subscriber, "--expect-sync")
        self.wait_until_in_sync(pair)

    def pause(self, pair: Pair) -> None:
        pair.stop_daemon(self.daemon)

    def resume(self, pair: Pair, subscriber: psycopg.Connection) -> None:
        self.daemon = self.start_worker(pair, pair.subscriber)

    def copy(self, pair: Pair, at: Report, look: Look) -> None:
        self.add_tables(pair, pair.subscriber)
        self.wait_until_in_sync(pair, at, look)
