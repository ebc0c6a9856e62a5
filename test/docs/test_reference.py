"""The reference has everything that a server offers, and nothing else."""

import re
import tempfile
from pathlib import Path

import pytest
from servers import Server, created, own_programs

DOCS = Path(__file__).resolve().parents[2] / "docs"

# What the extension's own code calls, here and on other servers.
INTERNAL = re.compile(
    r"(member|join|stat_get|copy_get|check|part|switch|create_dsn|schema|group|ddl)_"
    r"|(arriving|join)_|(node_query|node_send|subscription_name|is_\w+|count_free|refuse_namesake"
    r"|published_tables|key_columns|output_plugin|drop_stale_subscription|require_\w+|launch_join"
    r"|free_node_id|recent_query|keep_tombstones|stamped|health_of_\w+|forget_\w+|set_until|parting_node"
    r"|query_group|create_node_subscription|record_delete|background_transactions|await_both_members|row_condition"
    r"|alter_(group|slot)_failover|set_subscription_\w+|start_apply|sent_commit|follow_tables|major_version|note_origins|own_copy\w*|grant_node_objects"
    r"|publisher_of|meet_copy|refuse_old_copy|refuse_if_set_back|record_loss|note_publisher|stop_sending"
    r"|adopt_copied_rows|begin_join_from_backup|complete_tombstones|copied_row_origins"
    r"|pending_copy|prepare_copy_on|rename_applied|take_over_subscription"
    r"|repair_statement|ignore_replicated_row|table_changed|local_\w+|node_dsn|node_query_all|applied_position)$"
)
PUBLIC = {"switch_back", "switch_over", "switch_over_plan", "switch_over_cancel", "part_node",
          "join_node_group", "ddl_capture_script", "ddl_capture_removal_script", "ddl_needs_lock",
          "schema_differences", "forget_promotion"}  # fmt: skip


@pytest.fixture(scope="module")
def server():
    # not pytest's own directory: the path of a socket must be short
    with tempfile.TemporaryDirectory(prefix="weft-docs-") as directory:
        server = Server(Path(directory) / "a", own_programs(), "fsync = off", weft=True)
        with created(server):
            server.query("CREATE EXTENSION weft")
            yield server


def names(server, query):
    return {row[0] for row in server.query(query)}


def test_functions(server):
    there = names(server, "SELECT proname FROM pg_proc WHERE pronamespace = 'weft'::regnamespace")
    public = {name for name in there if name in PUBLIC or not INTERNAL.match(name)}
    text = (DOCS / "functions.md").read_text()
    documented = set(re.findall(r"^\| `(?:CALL )?(\w+)\(", text, re.MULTILINE))
    assert documented == public


def test_views(server):
    """Each column is named in its relation's section, or, of a table of tables, in its row."""
    text = (DOCS / "views.md").read_text()
    missing = []
    for relation, columns in server.query(
        """SELECT relname, array_agg(attname::text ORDER BY attnum)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND attnum > 0
        WHERE relnamespace = 'weft'::regnamespace AND relkind IN ('r', 'v') GROUP BY 1"""
    ):
        section = re.search(rf"^## weft\.{relation}$(.*?)(?=^## |\Z)", text, re.M | re.S)
        row = re.search(rf"^\| `weft\.{relation}` \|.*$", text, re.M)
        if f"`weft.{relation}`" not in text and not section:
            if not re.match(
                r"(join|arriving)_|node_(group_)?entry$|(node|prepared)_copy$|promotion_loss$"
                r"|known_origin$",
                relation,
            ):
                missing.append(relation)
        elif found := section or row:
            described = set(re.findall(r"`(\w+)`", found[0]))
            missing += [f"{relation}.{name}" for name in columns if name not in described]
    # those that are rows of a table of tables, but say nothing about columns
    kept = r"(conflict_resolver|conflict_node|delta_column|tombstone)\."
    assert [name for name in missing if not re.match(kept, name)] == []


def test_no_column_is_described_that_is_not_there(server):
    text = (DOCS / "views.md").read_text()
    wrong = []
    for match in re.finditer(r"^## weft\.(\w+)$(.*?)(?=^## )", text, re.M | re.S):
        there = names(
            server, f"SELECT attname FROM pg_attribute WHERE attrelid = 'weft.{match[1]}'::regclass"
        )
        for cell in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", match[2], re.M):
            wrong += [f"{match[1]}.{name}" for name in re.findall(r"`(\w+)`", cell)
                      if name not in there]  # fmt: skip
    assert wrong == []


def test_wait_events():
    source = (DOCS.parent / "src" / "wait_event.c").read_text()
    text = (DOCS / "views.md").read_text()
    assert set(re.findall(r"`(Weft\w+)`", text)) == set(re.findall(r'"(Weft\w+)"', source))


def test_parameters(server):
    text = (DOCS / "parameters.md").read_text()
    rows = dict(re.findall(r"^\| `(weft\.\w+)` \| (.*?) \|", text, re.MULTILINE))
    there = {
        row.name: row
        for row in server.query(
            """SELECT name, current_setting(name) AS value, context FROM pg_settings
            WHERE name LIKE 'weft.%'"""
        )
    }
    assert set(rows) == set(there)
    assert {name: row.value for name, row in there.items() if row.value != rows[name]} == {}
    restart = {name for name, row in there.items() if row.context == "postmaster"}
    assert set(re.findall(r"^\| `(weft\.\w+)` .*\| restart \|", text, re.MULTILINE)) == restart
