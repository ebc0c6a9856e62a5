"""pglogical, from its source package, on the same server as the others."""

from __future__ import annotations

import psycopg

from ..build import Build
from ..pair import Pair, wait_until
from .base import Look, Report, System, wait_for_tables
from .native import advance_slots, slots_idle

SUBSCRIPTION = "bench"


class Pglogical(System):
    name = "pglogical"
    synchronous_name = SUBSCRIPTION

    def publisher_settings(self, build: Build) -> dict[str, object]:
        return {"shared_preload_libraries": "pglogical", **build.with_plugin("pglogical_output")}

    def subscriber_settings(self, build: Build) -> dict[str, object]:
        settings: dict[str, object] = {"shared_preload_libraries": "pglogical"}
        if self.synchronous_commit:
            settings["pglogical.synchronous_commit"] = "on"
        return settings

    def prepare(self, pair: Pair) -> None:
        for server in pair.servers:
            server.execute("CREATE EXTENSION pglogical")
            server.execute(
                f"SELECT pglogical.create_node('{server.name}', '{server.remote_conninfo}')"
            )
        for table in pair.contents.all_tables:
            # It sends updates and deletes of tables with a key only.
            keyed = pair.publisher.value(
                f"SELECT EXISTS (SELECT FROM pg_index WHERE indrelid = '{table}'::regclass "
                "AND indisprimary)"
            )
            which = "default" if keyed else "default_insert_only"
            pair.publisher.execute(
                f"SELECT pglogical.replication_set_add_table('{which}', '{table}')"
            )

    def create(self, pair: Pair, copy_data: str) -> None:
        pair.subscriber.execute(
            f"SELECT pglogical.create_subscription('{SUBSCRIPTION}', "
            f"'{pair.publisher.remote_conninfo}', "
            "replication_sets := '{default,default_insert_only}', "
            f"synchronize_structure := false, synchronize_data := {copy_data})"
        )

    def connect(self, pair: Pair) -> None:
        self.create(pair, copy_data="false")
        wait_until(
            lambda: (
                pair.subscriber.value("SELECT status FROM pglogical.show_subscription_status()")
                == "replicating"
            ),
            "pglogical does not begin to replicate",
        )

    def slot_of(self, pair: Pair) -> str | None:
        """Its name is made of several others."""
        return str(pair.publisher.value("SELECT slot_name FROM pg_replication_slots"))

    def pause(self, pair: Pair) -> None:
        pair.subscriber.execute(
            f"SELECT pglogical.alter_subscription_disable('{SUBSCRIPTION}', true)"
        )
        wait_until(lambda: slots_idle(pair), "pglogical's worker does not end")
        advance_slots(pair)

    def resume(self, pair: Pair, subscriber: psycopg.Connection) -> None:
        subscriber.execute(f"SELECT pglogical.alter_subscription_enable('{SUBSCRIPTION}', true)")

    def copy(self, pair: Pair, at: Report, look: Look) -> None:
        self.create(pair, copy_data="true")
        wait_for_tables(
            pair, "SELECT count(*) > 0 AND bool_and(sync_status IN ('y', 'r')) "
            "FROM pglogical.local_sync_status",
            "the initial copy does not end", at, look,
        )  # fmt: skip
