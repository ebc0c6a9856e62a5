"""What is examined: a subscription with both of its servers, and what was read from them.

Rows are read once and kept, so a case shows one moment.  To look again, make another case.
"""

from dataclasses import dataclass, field
from functools import cached_property

from weft_cli.doctor.reading import NotChecked, Row
from weft_cli.doctor.table_facts import Tables
from weft_cli.server import Server

# Schemas in which no user creates tables.
SYSTEM_SCHEMAS = ("pg_catalog", "information_schema", "pg_toast", "weft", "weft_switch")


@dataclass(frozen=True)
class Thresholds:
    """Both in seconds."""

    transaction_age: float = 300
    clock_skew: float = 2


class Settings:
    """The parameters of a server, as far as the role may see them."""

    def __init__(self, server: Server):
        self.by_name = {
            row["name"]: row
            for row in server.rows("SELECT name, setting, reset_val, unit FROM pg_settings")
        }

    def has(self, name: str) -> bool:
        return name in self.by_name

    def text(self, name: str) -> str:
        if name not in self.by_name:
            raise NotChecked(f"{name} is visible only to members of pg_read_all_settings")
        return str(self.by_name[name]["setting"])

    def number(self, name: str) -> int:
        return int(self.text(name))

    def names(self, name: str) -> list[str]:
        """The value of a parameter that is a list of names."""
        return [part.strip().strip('"') for part in self.text(name).split(",") if part.strip()]

    def default(self, name: str) -> int:
        """The number with which sessions of this role begin."""
        return int(self.by_name[name]["reset_val"]) if name in self.by_name else 0


SUBSCRIPTIONS = """
    SELECT s.oid::bigint AS oid, s.subname AS name, s.subenabled AS enabled,
        s.subslotname AS slot, s.subpublications AS publications, s.subbinary AS binary,
        s.subrunasowner AS run_as_owner, s.subfailover AS failover,
        s.subowner::bigint AS owner_oid, r.rolname AS owner, r.rolsuper AS owner_is_superuser,
        coalesce(l.label, '') AS label
    FROM pg_catalog.pg_subscription s
        JOIN pg_catalog.pg_database d ON d.oid = s.subdbid AND d.datname = current_database()
        JOIN pg_catalog.pg_roles r ON r.oid = s.subowner
        LEFT JOIN pg_catalog.pg_shseclabel l ON l.objoid = s.oid AND l.provider = 'weft'
            AND l.classoid = 'pg_catalog.pg_subscription'::regclass
    ORDER BY s.subname"""

# Tables of the publications, as the subscriber knows them: with publish_via_partition_root, roots.
# Publications FOR ALL TABLES list Weft's own tables, but subscriptions never get them.
PUBLISHED = """
    SELECT c.oid::bigint AS oid, p.schemaname AS schema, p.tablename AS name, c.relkind AS kind,
        c.relreplident AS identity, c.reltoastrelid::bigint AS toast, c.relowner::bigint AS owner,
        array_agg(DISTINCT a.name) AS columns
    FROM pg_catalog.pg_publication_tables p
        JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
        JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
        LEFT JOIN LATERAL unnest(p.attnames::text[]) a(name) ON true
    WHERE p.pubname = ANY (%s) AND n.nspname NOT IN ('weft', 'weft_switch')
    GROUP BY 1, 2, 3, 4, 5, 6, 7
    ORDER BY 2, 3"""

SUBSCRIBED = """
    SELECT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name, c.relkind AS kind,
        c.relpersistence AS persistence, c.relreplident AS identity,
        c.relowner::bigint AS owner, r.srsubstate AS state
    FROM pg_catalog.pg_subscription_rel r
        JOIN pg_catalog.pg_class c ON c.oid = r.srrelid
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE r.srsubid = %s::oid AND c.relkind <> 'S' AND n.nspname NOT IN ('weft', 'weft_switch')
    ORDER BY 2, 3"""

SLOTS = """
    SELECT slot_name AS name, plugin, slot_type AS type, database = current_database() AS is_here,
        temporary, active, active_pid, wal_status, safe_wal_size,
        pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery()
            THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END,
            restart_lsn)::bigint AS kept_bytes,
        to_jsonb(s) ->> 'invalidation_reason' AS invalidation_reason
    FROM pg_catalog.pg_replication_slots s ORDER BY slot_name"""


@dataclass
class Case:
    """A subscription, its server, and its publisher.

    Without a subscription, the case is about servers between which one may be created.
    """

    subscriber: Server
    subscription: Row | None
    publisher: Server | None
    thresholds: Thresholds = field(default_factory=Thresholds)
    # why there is no publisher: nothing answers there, or the role may not know where it is
    unreachable: str = ""
    hidden: str = ""

    @property
    def name(self) -> str:
        assert self.subscription is not None
        return str(self.subscription["name"])

    @property
    def there(self) -> Server:
        """The publisher; only for checks that need it."""
        assert self.publisher is not None
        return self.publisher

    @property
    def label(self) -> dict[str, str]:
        """What Weft stores for the subscription: num_writers, detect_conflicts, ddl."""
        text = self.subscription["label"] if self.subscription else ""
        return parse_label(text)

    @property
    def detects_conflicts(self) -> bool:
        return self.label.get("detect_conflicts") in ("on", "true", "1")

    @cached_property
    def settings(self) -> Settings:
        return Settings(self.subscriber)

    @property
    def weft_loaded(self) -> bool:
        """Without the library, the extension's views fail."""
        return self.settings.has("weft.ring_size")

    @cached_property
    def settings_there(self) -> Settings:
        return Settings(self.there)

    @cached_property
    def subscribed(self) -> list[Row]:
        assert self.subscription is not None
        return self.subscriber.rows(SUBSCRIBED, self.subscription["oid"])

    @cached_property
    def published(self) -> list[Row]:
        assert self.subscription is not None
        return self.there.rows(PUBLISHED, list(self.subscription["publications"]))

    @cached_property
    def slots(self) -> list[Row]:
        """All slots of the publisher."""
        return self.there.rows(SLOTS)

    @property
    def slot(self) -> Row | None:
        """The subscription's, if it exists."""
        assert self.subscription is not None
        wanted = self.subscription["slot"]
        return next((slot for slot in self.slots if slot["name"] == wanted), None)

    @property
    def unsynchronized(self) -> int:
        """Number of tables whose initial copy has not ended."""
        if self.subscription is None:
            return 0
        return sum(table["state"] != "r" for table in self.subscribed)

    @property
    def copies(self) -> int:
        """Number of workers that will copy tables at the same time."""
        limit = self.settings.number("max_sync_workers_per_subscription")
        return min(limit, self.unsynchronized if self.subscription else limit)

    @cached_property
    def pairs(self) -> list[tuple[Row, Row]]:
        """The replicated tables: as subscribed, and as published."""
        there = {(table["schema"], table["name"]): table for table in self.published}
        return [
            (table, there[table["schema"], table["name"]])
            for table in self.subscribed
            if (table["schema"], table["name"]) in there
        ]

    def require_publisher(self) -> None:
        """For checks of both sides that do what they can with one: the other was not checked."""
        if self.publisher is None and (self.unreachable or self.hidden):
            raise NotChecked(f"only on the subscriber: {self.why_no_publisher}")

    @property
    def why_no_publisher(self) -> str:
        return "the publisher cannot be reached (W001)" if self.unreachable else self.hidden

    @cached_property
    def tables(self) -> Tables:
        return Tables(self.subscriber, self.there, self.pairs)

    def require_statistics(self, server: Server) -> None:
        """Raises NotChecked if the role does not see what other sessions do."""
        if not server.rows("SELECT 1 WHERE pg_has_role('pg_read_all_stats', 'USAGE')"):
            raise NotChecked(
                "only members of pg_read_all_stats see the sessions of other roles"
                f" on {server.name}"
            )


def parse_label(text: str) -> dict[str, str]:
    items = (item.strip().partition("=") for item in text.split(",") if item.strip())
    return {key: value for key, _, value in items}
