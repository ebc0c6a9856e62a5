"""Slony-I, from Debian's packages, on the PostgreSQL that they belong to."""

from __future__ import annotations

import psycopg

from ..daemon import Daemon
from ..errors import run
from ..pair import Pair
from .base import Look, Report, System, nothing, wait_for_tables

CLUSTER = "bench"
# Names of nodes are numbers.
PUBLISHER, SUBSCRIBER = 1, 2


class Slony(System):
    name = "slony"
    build_name = "debian-15"
    remote = False
    queues = (f"_{CLUSTER}",)

    def refusal(self, scenario: str) -> str | None:
        if scenario == "io-drain":
            return "PostgreSQL 15 has no debug_io_direct"
        return None

    def slonik(self, pair: Pair, script: str) -> None:
        preamble = (
            f"cluster name = {CLUSTER};\n"
            f"node {PUBLISHER} admin conninfo = '{pair.publisher.conninfo}';\n"
            f"node {SUBSCRIBER} admin conninfo = '{pair.subscriber.conninfo}';\n"
        )
        build = pair.build
        run(build.tool("slonik"), environment=build.environment, input_=preamble + script)

    def prepare(self, pair: Pair) -> None:
        tables = "".join(
            f"set add table (set id = 1, origin = {PUBLISHER}, id = {number}, "
            f"fully qualified name = 'public.{table}');\n"
            for number, table in enumerate(pair.contents.all_tables, 1)
        )
        self.slonik(
            pair,
            f"init cluster (id = {PUBLISHER}, comment = 'publisher');\n"
            f"create set (id = 1, origin = {PUBLISHER}, comment = 'all');\n{tables}"
            f"store node (id = {SUBSCRIBER}, comment = 'subscriber', event node = {PUBLISHER});\n"
            f"store path (server = {PUBLISHER}, client = {SUBSCRIBER}, "
            f"conninfo = '{pair.publisher.conninfo}');\n"
            f"store path (server = {SUBSCRIBER}, client = {PUBLISHER}, "
            f"conninfo = '{pair.subscriber.conninfo}');\n",
        )
        self.start_slon(pair, "publisher's slon", pair.publisher.conninfo)
        self.start_subscriber(pair)

    def subscribe(self, pair: Pair, omit_copy: str) -> None:
        self.slonik(
            pair,
            f"subscribe set (id = 1, provider = {PUBLISHER}, receiver = {SUBSCRIBER}, "
            f"forward = no, omit copy = {omit_copy});\n",
        )

    def start_slon(self, pair: Pair, kind: str, conninfo: str) -> Daemon:
        # Only errors and warnings are of interest.
        return pair.start_daemon(kind, pair.build.tool("slon"), "-d0", CLUSTER, conninfo)

    def start_subscriber(self, pair: Pair) -> None:
        self.daemon = self.start_slon(pair, "subscriber's slon", pair.subscriber.conninfo)

    def wait_for_subscription(self, pair: Pair, at: Report = nothing, look: Look = nothing) -> None:
        # Committed together with the copy.
        wait_for_tables(
            pair, f"SELECT coalesce(bool_or(sub_active), false) FROM _{CLUSTER}.sl_subscribe",
            "Slony-I does not subscribe", at, look,
        )  # fmt: skip

    def connect(self, pair: Pair) -> None:
        self.subscribe(pair, omit_copy="yes")
        self.wait_for_subscription(pair)

    def pause(self, pair: Pair) -> None:
        pair.stop_daemon(self.daemon)

    def resume(self, pair: Pair, subscriber: psycopg.Connection) -> None:
        self.start_subscriber(pair)

    def copy(self, pair: Pair, at: Report, look: Look) -> None:
        self.subscribe(pair, omit_copy="no")
        self.wait_for_subscription(pair, at, look)
