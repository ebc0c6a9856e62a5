"""What can be wrong with a pair of servers, one scenario at a time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from doctor_site import SCENARIOS, SLOT, N, S, Site, T, scenario, standby
from servers import wait_for


@scenario("W001", fixed=False)
def publisher_elsewhere(site: Site) -> Iterator[None]:
    site.arguments = ["--publisher", f"host={site.pub.directory}/nowhere dbname=doctor"]
    yield


def role(site: Site, attributes: str, *grants: str) -> str:
    site.pub.query(f'CREATE ROLE "ro""le" LOGIN {attributes}')
    for grant in grants:
        site.pub.query(f'GRANT {grant} TO "ro""le"')
    return site.pub.conninfo.replace("user=postgres", "user='ro\"le'")


def drop_role(site: Site) -> None:
    site.pub.query('DROP OWNED BY "ro""le"; DROP ROLE "ro""le"')


@scenario("W002", fixed=False)
def no_replication(site: Site) -> Iterator[None]:
    site.arguments = ["--publisher", role(site, "", "pg_monitor", "pg_read_all_data")]
    yield
    drop_role(site)


@scenario("W003", fixed=False)
def no_select(site: Site) -> Iterator[None]:
    site.arguments = ["--publisher", role(site, "REPLICATION", "pg_monitor")]
    # What it may not read, it cannot check.
    site.arguments += ["--ignore", "W090"]
    yield
    drop_role(site)


@scenario("W004", fixed=False)
def owner_without_rights(site: Site) -> Iterator[None]:
    site.sub.query('CREATE ROLE "ro""le" LOGIN')
    site.sub.query('GRANT CREATE ON DATABASE doctor TO "ro""le"')
    site.sub.query('GRANT pg_create_subscription TO "ro""le"')
    site.subscription("SET (password_required = false)")
    site.subscription('OWNER TO "ro""le"')
    yield
    site.subscription("OWNER TO postgres")
    site.subscription("SET (password_required = true)")
    site.sub.query('DROP OWNED BY "ro""le"; DROP ROLE "ro""le"')


@scenario("W004", fixed=False)
def owner_without_rights_on_table(site: Site) -> Iterator[None]:
    site.sub.query('CREATE ROLE "ro""le" LOGIN')
    site.sub.query('GRANT CREATE ON DATABASE doctor TO "ro""le"')
    site.sub.query('GRANT pg_create_subscription TO "ro""le"')
    site.subscription("SET (password_required = false, run_as_owner = true)")
    site.subscription('OWNER TO "ro""le"')
    yield
    site.subscription("OWNER TO postgres")
    site.subscription("SET (password_required = true, run_as_owner = false)")
    site.sub.query('DROP OWNED BY "ro""le"; DROP ROLE "ro""le"')


def knows_plugin_libraries(site: Site) -> bool:
    return bool(site.pub.value("SELECT 1 FROM pg_settings WHERE name = 'output_plugin_libraries'"))


@scenario("W013")
def plugin_not_allowed(site: Site) -> Iterator[None]:
    if not knows_plugin_libraries(site):
        pytest.skip("this server does not have output_plugin_libraries")
    before = site.pub.value("SHOW output_plugin_libraries")
    site.reload(site.pub, "output_plugin_libraries", "'pgoutput', 'test_decoding'")
    yield
    assert site.pub.value("SHOW output_plugin_libraries") == before
    site.reload(site.pub, "output_plugin_libraries", None)


@scenario("W014", fixed=False)
def settings_not_readable(site: Site) -> Iterator[None]:
    if not knows_plugin_libraries(site):
        pytest.skip("this server does not have output_plugin_libraries")
    conninfo = role(site, "REPLICATION", "pg_read_all_stats", "pg_read_all_data")
    # These read parameters that the role may not read.
    site.arguments = ["--publisher", conninfo, "--ignore", "W013,W020"]
    yield
    drop_role(site)


@scenario("W015")
def little_wal_kept(site: Site) -> Iterator[None]:
    site.reload(site.pub, "max_slot_wal_keep_size", "'1GB'")
    yield
    site.reload(site.pub, "max_slot_wal_keep_size", None)


@scenario("W016", fixed=False)
def slot_with_pgoutput(site: Site) -> Iterator[None]:
    replace_slot(site, "pgoutput")
    yield
    replace_slot(site, "weft")


def replace_slot(site: Site, plugin: str) -> None:
    site.subscription("DISABLE")
    site.drop_slot()
    site.pub.query("SELECT pg_create_logical_replication_slot(%s, %s)", SLOT, plugin)
    site.subscription("ENABLE")
    wait_until_connected(site)


def wait_until_connected(site: Site) -> None:
    site.pub.wait_until(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
    # Errors of the past make the doctor look at the worker for longer.
    site.sub.query("SELECT pg_stat_reset_subscription_stats(oid) FROM pg_subscription")


@scenario("W017")
def idle_slots_lost(site: Site) -> Iterator[None]:
    if site.pub.major < 18:
        pytest.skip("idle_replication_slot_timeout is new in 18")
    site.reload(site.pub, "idle_replication_slot_timeout", "'1d'")
    yield
    site.reload(site.pub, "idle_replication_slot_timeout", None)


@scenario("W018")
def sender_without_timeout(site: Site) -> Iterator[None]:
    site.reload(site.pub, "wal_sender_timeout", "0")
    yield
    site.reload(site.pub, "wal_sender_timeout", None)


@scenario("W018")
def receiver_with_short_timeout(site: Site) -> Iterator[None]:
    site.reload(site.sub, "wal_receiver_timeout", "'5s'")
    yield
    site.reload(site.sub, "wal_receiver_timeout", None)


@scenario("W019")
def copies_time_out(site: Site) -> Iterator[None]:
    site.pub.query("ALTER DATABASE doctor SET statement_timeout = '10min'")
    yield
    site.pub.query("ALTER DATABASE doctor RESET statement_timeout")
    site.pub.query("ALTER ROLE postgres IN DATABASE doctor RESET statement_timeout")


@scenario("W019")
def apply_times_out(site: Site) -> Iterator[None]:
    site.sub.query("ALTER ROLE postgres SET lock_timeout = '1min'")
    yield
    site.sub.query("ALTER ROLE postgres RESET lock_timeout")
    site.sub.query("ALTER ROLE postgres IN DATABASE doctor RESET lock_timeout")


@scenario("W020", "W041")
def publisher_without_weft(site: Site) -> Iterator[None]:
    site.restart(site.pub, "shared_preload_libraries", "'plpgsql'")
    yield
    site.restart(site.pub, "shared_preload_libraries")
    wait_until_connected(site)


@scenario("W021", fixed=False)
def history_full(site: Site) -> Iterator[None]:
    site.sub.query(
        """INSERT INTO weft.conflict_history (recorded_at, subname, relation, conflict_type,
            resolver, resolution, key, remote_commit_time, remote_node, remote_xid, remote_lsn)
        VALUES (now(), 's', 't', 'insert_exists', 'skip', 'keep_local', '{}', now(), 1, '1',
            '0/1')"""
    )
    site.reload(site.sub, "weft.conflict_history_max_rows", "1")
    yield
    site.reload(site.sub, "weft.conflict_history_max_rows", None)
    site.sub.query("DELETE FROM weft.conflict_history")


@scenario("W034")
def no_extension(site: Site) -> Iterator[None]:
    site.sub.query("DROP EXTENSION weft")
    # This reads a view of the extension.
    site.arguments = ["--ignore", "W036"]
    yield


@scenario("W035")
def old_extension(site: Site) -> Iterator[None]:
    directory = Path(site.sub.run("pg_config", "--sharedir").strip(), "extension")
    version = site.sub.value("SELECT extversion FROM pg_extension WHERE extname = 'weft'")
    script = directory / f"weft--0.0.1--{version}.sql"
    script.write_text("")
    site.sub.query("UPDATE pg_extension SET extversion = '0.0.1' WHERE extname = 'weft'")
    yield
    script.unlink()
    assert version == site.sub.value("SELECT extversion FROM pg_extension WHERE extname = 'weft'")


@scenario("W036")
def no_writers(site: Site) -> Iterator[None]:
    site.subscription("SET (num_writers = 0)")
    site.sub.wait_until("SELECT native_reason IS NOT NULL FROM weft.stat_subscription")
    yield
    site.subscription("SET (num_writers = 4)")
    site.sub.wait_until("SELECT native_reason IS NULL FROM weft.stat_subscription")


@scenario("W040")
def disabled(site: Site) -> Iterator[None]:
    site.subscription("DISABLE")
    yield
    wait_until_connected(site)


@scenario("W041", fixed=False)
def apply_fails(site: Site) -> Iterator[None]:
    site.sub.query(f"INSERT INTO {T} (id) VALUES (1)")
    site.pub.query(f"INSERT INTO {T} (id) VALUES (1)")
    site.sub.wait_until("SELECT apply_error_count > 1 FROM pg_stat_subscription_stats")
    yield
    site.sub.query(f"DELETE FROM {T}")
    site.sub.wait_until(f"SELECT count(*) = 1 FROM {T}")
    site.pub.query(f"DELETE FROM {T}")
    site.applied()
    wait_until_connected(site)


@scenario("W042", fixed=False)
def copy_fails(site: Site) -> Iterator[None]:
    for server in (site.pub, site.sub):
        server.query(f"CREATE TABLE {N}.full (id integer PRIMARY KEY)")
        server.query(f"INSERT INTO {N}.full VALUES (1)")
    site.subscription("REFRESH PUBLICATION")
    site.sub.wait_until("SELECT sync_error_count > 0 FROM pg_stat_subscription_stats")
    yield
    site.sub.query(f"TRUNCATE {N}.full")
    site.synchronize()
    drop_table(site, f"{N}.full")
    wait_until_connected(site)


def drop_table(site: Site, table: str) -> None:
    site.pub.query(f"DROP TABLE IF EXISTS {table}")
    site.refresh()
    site.sub.query(f"DROP TABLE IF EXISTS {table}")


@scenario("W043")
def apply_blocked(site: Site) -> Iterator[None]:
    with site.sub.connect(autocommit=False) as connection:
        connection.execute(f"LOCK TABLE {T} IN ACCESS EXCLUSIVE MODE")
        site.pub.query(f"INSERT INTO {T} (id) VALUES (2)")
        pid = connection.info.backend_pid
        site.sub.wait_until(
            "SELECT clock_timestamp() - xact_start > interval '2 s' AND EXISTS (SELECT"
            f" FROM pg_stat_activity w WHERE {pid} = ANY (pg_blocking_pids(w.pid)))"
            f" FROM pg_stat_activity WHERE pid = {pid}"
        )
        yield
        connection.close()
    site.pub.query(f"DELETE FROM {T}")
    site.applied()
    wait_until_connected(site)


@scenario("W050", "W041", fixed=False)
def slot_dropped(site: Site) -> Iterator[None]:
    site.subscription("DISABLE")
    site.drop_slot()
    site.subscription("ENABLE")
    yield
    site.create_slot()
    wait_until_connected(site)


@scenario("W051", "W041", fixed=False)
def slot_lost(site: Site) -> Iterator[None]:
    site.subscription("DISABLE")
    site.reload(site.pub, "max_slot_wal_keep_size", "'16MB'")
    site.reload(site.pub, "max_wal_size", "'32MB'")

    def lost() -> bool:
        switch_wal(site)
        site.pub.query("CHECKPOINT")
        return wal_status(site) == "lost"

    wait_for(lost, "the slot to be lost")
    site.reload(site.pub, "max_slot_wal_keep_size", None)
    site.reload(site.pub, "max_wal_size", None)
    site.subscription("ENABLE")
    yield
    site.subscription("DISABLE")
    site.drop_slot()
    site.create_slot()
    site.subscription("ENABLE")
    wait_until_connected(site)


def wal_status(site: Site) -> str:
    return str(
        site.pub.value("SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", SLOT)
    )


def switch_wal(site: Site) -> None:
    """Begins a segment; this takes no time, but 16 MB of positions."""
    site.pub.query("SELECT pg_logical_emit_message(false, 'doctor', '')")
    site.pub.query("SELECT pg_switch_wal()")


@scenario("W052")
def slot_in_danger(site: Site) -> Iterator[None]:
    site.reload(site.pub, "max_wal_size", "'32MB'")
    site.reload(site.pub, "max_slot_wal_keep_size", "'96MB'")
    with site.pub.connect(autocommit=False) as connection:
        # An open transaction holds the slot back, and none that is old.
        connection.execute(f"INSERT INTO {T} (id) VALUES (3)")

        def in_danger() -> bool:
            switch_wal(site)
            left = site.pub.value(
                "SELECT safe_wal_size FROM pg_replication_slots WHERE slot_name = %s", SLOT
            )
            return bool(left < 19 << 20)

        wait_for(in_danger, "the slot to be in danger")
        yield
        connection.rollback()
    site.reload(site.pub, "max_wal_size", None)
    site.reload(site.pub, "max_slot_wal_keep_size", None)


@scenario("W053")
def slot_left_over(site: Site) -> Iterator[None]:
    system = site.sub.value("SELECT system_identifier FROM pg_control_system()")
    site.pub.query(f"SELECT pg_create_logical_replication_slot('pg_1_sync_2_{system}', 'pgoutput')")
    yield


@scenario("W054", fixed=False)
def slot_of_nobody(site: Site) -> Iterator[None]:
    site.pub.query("SELECT pg_create_logical_replication_slot('nobodys', 'pgoutput')")
    yield
    site.pub.query("SELECT pg_drop_replication_slot('nobodys')")


@scenario("W055")
def no_slot(site: Site) -> Iterator[None]:
    """The name of the slot is that of the subscription only in this test."""
    site.subscription("DISABLE")
    site.pub.wait_until(f"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
    site.subscription("SET (slot_name = NONE)")
    site.subscription(f"RENAME TO {SLOT}")
    # To this subscriber, the slot is nobody's.
    site.arguments = ["--ignore", "W054"]
    yield
    site.sub.query(f"ALTER SUBSCRIPTION {SLOT} RENAME TO {S}")
    wait_until_connected(site)


@scenario("W056")
def transaction_open(site: Site) -> Iterator[None]:
    site.arguments = ["--transaction-age", "0"]
    with site.pub.connect(autocommit=False) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        yield
        connection.close()


@scenario("W056", fixed=False)
def transaction_prepared(site: Site) -> Iterator[None]:
    site.arguments = ["--transaction-age", "0"]
    site.pub.query("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'it''s'")
    yield
    site.pub.query("ROLLBACK PREPARED 'it''s'")


@scenario("W060")
def no_publication(site: Site) -> Iterator[None]:
    site.subscription('ADD PUBLICATION "no""thing" WITH (refresh = false)')
    yield


@scenario("W061")
def table_added(site: Site) -> Iterator[None]:
    for server in (site.pub, site.sub):
        server.query(f'CREATE TABLE {N}."ne""w" (id integer PRIMARY KEY)')
    yield
    site.synchronize()
    drop_table(site, f'{N}."ne""w"')


@scenario("W062", fixed=False)
def table_missing(site: Site) -> Iterator[None]:
    site.pub.query(f"CREATE TABLE {N}.missing (id integer PRIMARY KEY)")
    yield
    site.pub.query(f"DROP TABLE {N}.missing")


@scenario("W063")
def table_not_published(site: Site) -> Iterator[None]:
    for server in (site.pub, site.sub):
        server.query(f'CREATE TABLE {N}."go""ne" (id integer PRIMARY KEY)')
    site.refresh()
    site.pub.query(f'DROP TABLE {N}."go""ne"')
    yield
    site.sub.query(f'DROP TABLE {N}."go""ne"')


@scenario("W064")
def table_forgotten(site: Site) -> Iterator[None]:
    for server in (site.pub, site.sub):
        server.query('CREATE TABLE public."for""gotten" (id integer PRIMARY KEY)')
    yield
    site.synchronize()
    drop_table(site, 'public."for""gotten"')


@scenario("W064", fixed=False)
def table_forgotten_with_rows(site: Site) -> Iterator[None]:
    for server in (site.pub, site.sub):
        server.query("CREATE TABLE public.filled (id integer PRIMARY KEY)")
        server.query("INSERT INTO public.filled VALUES (1)")
    yield
    drop_table(site, "public.filled")


@scenario("W070")
def column_missing(site: Site) -> Iterator[None]:
    site.pub.query(f'ALTER TABLE {T} ADD COLUMN "ne""w" numeric(10,2)')
    yield
    for server in (site.pub, site.sub):
        server.query(f'ALTER TABLE {T} DROP COLUMN "ne""w"')


@scenario("W070", fixed=False)
def column_of_unknown_type(site: Site) -> Iterator[None]:
    site.pub.query("CREATE DOMAIN public.strange AS integer")
    site.pub.query(f"ALTER TABLE {T} ADD COLUMN s public.strange")
    yield
    site.pub.query("DROP DOMAIN public.strange CASCADE")


@scenario("W071")
def column_must_be_filled(site: Site) -> Iterator[None]:
    site.sub.query(f'ALTER TABLE {T} ADD COLUMN "mu""st" integer NOT NULL')
    yield
    site.sub.query(f'ALTER TABLE {T} DROP COLUMN "mu""st"')


@scenario("W072")
def type_differs(site: Site) -> Iterator[None]:
    site.sub.query(f'ALTER TABLE {T} ALTER COLUMN "va""l" TYPE varchar(3)')
    yield


@scenario("W073", fixed=False)
def unique_here_only(site: Site) -> Iterator[None]:
    site.sub.query(f'CREATE UNIQUE INDEX "un""i" ON {T} (n)')
    yield
    site.sub.query(f'DROP INDEX {N}."un""i"')


@scenario("W074")
def unique_there_only(site: Site) -> Iterator[None]:
    site.pub.query(f'CREATE UNIQUE INDEX "un""i" ON {T} (n, "va""l")')
    yield
    site.pub.query(f'DROP INDEX {N}."un""i"')
    for (index,) in site.sub.query(
        "SELECT indexrelid::regclass FROM pg_index"
        f" WHERE indrelid = {literal(T)}::regclass AND NOT indisprimary"
    ):
        site.sub.query(f"DROP INDEX {index}")


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@scenario("W074", fixed=False)
def unique_expression_there_only(site: Site) -> Iterator[None]:
    site.pub.query(f'CREATE UNIQUE INDEX "un""i" ON {T} (lower("va""l")) WHERE n > 0')
    yield
    site.pub.query(f'DROP INDEX {N}."un""i"')


@scenario("W075")
def no_identity(site: Site) -> Iterator[None]:
    site.pub.query(f"ALTER TABLE {T} REPLICA IDENTITY NOTHING")
    yield


@scenario("W075")
def no_key(site: Site) -> Iterator[None]:
    for server in (site.pub, site.sub):
        server.query(f'CREATE TABLE {N}."key""less" (at integer)')
    site.refresh()
    yield
    drop_table(site, f'{N}."key""less"')


@scenario("W076", fixed=False)
def no_index_for_full(site: Site) -> Iterator[None]:
    site.pub.query(f"ALTER TABLE {N}.big REPLICA IDENTITY FULL")
    site.sub.query(f"ALTER TABLE {N}.big DROP CONSTRAINT big_pkey")
    site.sub.query(f"INSERT INTO {N}.big SELECT g, repeat('x', 500) FROM generate_series(1,3000) g")
    # Tables that are only added to are not reported.
    site.pub.query(f"INSERT INTO {N}.big VALUES (0)")
    site.pub.query(f"DELETE FROM {N}.big")
    site.applied()
    yield
    site.sub.query(f"TRUNCATE {N}.big")
    site.sub.query(f"ALTER TABLE {N}.big ADD PRIMARY KEY (id)")
    site.pub.query(f"ALTER TABLE {N}.big REPLICA IDENTITY DEFAULT")


@scenario("W077")
def no_key_here(site: Site) -> Iterator[None]:
    site.sub.query(f'ALTER TABLE {T} DROP CONSTRAINT "it\'s_pkey"')
    yield


@scenario("W077", "W073", "W074", fixed=False)
def other_key_here(site: Site) -> Iterator[None]:
    site.sub.query(f'ALTER TABLE {T} DROP CONSTRAINT "it\'s_pkey", ADD PRIMARY KEY (n)')
    yield
    site.sub.query(f'ALTER TABLE {T} DROP CONSTRAINT "it\'s_pkey", ADD PRIMARY KEY (id)')
    site.sub.query(f"ALTER TABLE {T} ALTER COLUMN n DROP NOT NULL")


@scenario("W078")
def table_unlogged(site: Site) -> Iterator[None]:
    site.sub.query(f"ALTER TABLE {T} SET UNLOGGED")
    yield


@scenario("W079")
def generated_here(site: Site) -> Iterator[None]:
    site.sub.query(
        f"ALTER TABLE {T} DROP COLUMN n, ADD COLUMN n integer GENERATED ALWAYS AS (id) STORED"
    )
    yield


@scenario("W079", fixed=False)
def generated_there(site: Site) -> Iterator[None]:
    site.pub.query(f"ALTER TABLE {T} ADD COLUMN g integer GENERATED ALWAYS AS (id) STORED")
    site.sub.query(f"ALTER TABLE {T} ADD COLUMN g integer")
    yield
    for server in (site.pub, site.sub):
        server.query(f"ALTER TABLE {T} DROP COLUMN g")


@scenario("W080")
def value_missing(site: Site) -> Iterator[None]:
    site.pub.query(f"""ALTER TYPE {N}."mo'od" ADD VALUE 'no\\t''so' AFTER 'ok'""")
    yield
    labels = "SELECT array_agg(enumlabel::text ORDER BY enumsortorder) FROM pg_enum"
    assert site.pub.value(labels) == site.sub.value(labels)


@scenario("W081")
def trigger_fires(site: Site) -> Iterator[None]:
    site.sub.query(
        "CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN RETURN NULL; END'"
    )
    site.sub.query(
        f'CREATE TRIGGER "tri""g" AFTER INSERT ON {T} EXECUTE FUNCTION public.nothing();'
        f'ALTER TABLE {T} ENABLE ALWAYS TRIGGER "tri""g"'
    )
    yield
    site.sub.query("DROP FUNCTION public.nothing() CASCADE")


@scenario("W090")
def sequence_behind_there(site: Site) -> Iterator[None]:
    site.pub.query(f"INSERT INTO {N}.seq_there VALUES (5)")
    yield
    site.pub.query(f"DELETE FROM {N}.seq_there")


@scenario("W091")
def sequence_behind_here(site: Site) -> Iterator[None]:
    site.pub.query(f"INSERT INTO {N}.seq_here VALUES (5)")
    site.sub.wait_until(f"SELECT count(*) = 1 FROM {N}.seq_here")
    yield
    site.pub.query(f"DELETE FROM {N}.seq_here")


@scenario("W101")
def collation_has_changed(site: Site) -> Iterator[None]:
    if not site.has_icu:
        pytest.skip("the server has no ICU")
    site.sub.query(
        """CREATE COLLATION public."co""ll" (provider = icu, locale = 'und');
        CREATE TABLE public.words (word text COLLATE public."co""ll");
        CREATE INDEX "wor""ds" ON public.words (word);
        UPDATE pg_collation SET collversion = '1' WHERE collname = 'co"ll'"""
    )
    yield
    site.sub.query("""DROP TABLE public.words; DROP COLLATION public."co""ll" """)


# In SQL, news of the publisher seems an hour old.
@scenario("W102", "W021", fixed=False)
def clock_is_wrong(site: Site) -> Iterator[None]:
    site.sub.query(
        """ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO true_clock_timestamp;
        CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql
        AS $$SELECT pg_catalog.true_clock_timestamp() + interval '1 hour'$$"""
    )
    yield
    site.sub.query(
        """DROP FUNCTION pg_catalog.clock_timestamp();
        ALTER FUNCTION pg_catalog.true_clock_timestamp() RENAME TO clock_timestamp"""
    )


@scenario("W110")
def failover_without_slot(site: Site) -> Iterator[None]:
    """The fix uncovers W111, which is fixed as well."""
    with standby(site.pub, "stand_by", site.pub.directory / "received"):
        yield
        site.reload(site.pub, "synchronized_standby_slots", None)
    set_failover(site, "false")


def set_failover(site: Site, value: str) -> None:
    site.subscription("DISABLE")
    site.pub.wait_until(f"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
    site.subscription(f"SET (failover = {value})")
    site.subscription("ENABLE")
    wait_until_connected(site)


@scenario("W111")
def ahead_of_standby(site: Site) -> Iterator[None]:
    set_failover(site, "true")
    with standby(site.pub, "stand_by", site.pub.directory / "received_2"):
        yield
        site.reload(site.pub, "synchronized_standby_slots", None)
    set_failover(site, "false")


__all__ = ["SCENARIOS", "wait_until_connected"]
