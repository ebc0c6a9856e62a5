"""Tests of what needs no server: pytest bench/tests"""

import io
import json
import os
import re
import tarfile
from pathlib import Path

import pytest
from rich.console import Console
from weft_bench import charts
from weft_bench.arguments import DEFAULTS, SYSTEMS, Options, parse_arguments
from weft_bench.build import Build, UnavailableError, fetch
from weft_bench.figures import (
    Figure,
    Results,
    faster,
    figures_from_json,
    format_value,
    summarize,
)
from weft_bench.load import filled_percent, processed, progress_rate
from weft_bench.loads import contents_of
from weft_bench.scenarios import SCENARIOS
from weft_bench.server import end_of_records
from weft_bench.session import as_lines
from weft_bench.systems import chosen_systems
from weft_bench.tables import tables
from weft_bench.watch import kind_of, private_kb, processor_ticks


def figure(system, value, repeat=1, writers=None, **other):
    values = {
        "scenario": "drain", "server": "17.11", "clients": 8, "metric": "drain_tps",
        "unit": "transactions/s", "pass_": "first", **other,
    }  # fmt: skip
    return Figure(system=system, writers=writers, repeat=repeat, value=value, **values)


def parsed(*arguments):
    (options,) = parse_arguments(list(arguments)).scenarios
    return options


def shown(results):
    console = Console(width=160, file=io.StringIO())
    for title, table in tables(results):
        console.print(title)
        console.print(table)
    return console.file.getvalue()


def cells(results, column):
    ((_, table),) = tables(results)
    (found,) = (c for c in table.columns if c.header == column)
    return list(found.cells)


def test_transactions_are_rounded_up_to_the_clients():
    options = parsed("drain", "--transactions", "5001", "--clients", "8")
    assert options.transactions_per_client * options.clients[0] == 5008


def test_defaults_depend_on_the_scenario():
    options = parsed("io-drain")
    assert (options.transactions, options.scale, options.writers) == (
        150_000,
        200,
        (1, 2, 4, 8, 16),
    )
    assert [o.scenario for o in parse_arguments([]).scenarios] == list(SCENARIOS)
    assert parsed("large", "--kind", "update").rows == 5_000_000
    assert parsed("large", "--kind", "delete").rows == 2_000_000
    assert parsed("large", "--kind", "delete", "--rows", "7").rows == 7
    assert parsed("drain", "--load", "tpcb") == parsed("drain") == DEFAULTS["drain"]
    assert parsed("drain", "--load", "mixed").transactions == 400_000
    assert parsed("drain", "--load", "wide", "--transactions", "7").transactions == 7


def test_what_cannot_be_compared_is_a_variant():
    assert parsed("drain").variant is None
    assert parsed("drain", "--load", "mixed").variant == "mixed"
    assert parsed("large", "--kind", "insert").variant is None
    assert parsed("large", "--kind", "update").variant == "update"
    assert parsed("copy", "--indexes", "2").variant == "2 indexes"


@pytest.mark.parametrize(
    "wrong",
    [["drain", "--systems", "nativ"], ["drain", "--writers", "0"], ["drain", "--writers", "65"],
     ["rain"], ["drain", "--passes", "last"], ["drain", "--rows", "5"],
     ["copy", "--kind", "update"], ["drain", "--load", "heavy"], ["io-drain", "--load", "wide"],
     ["--load", "mixed"],
     ["drain", "--clients", "1,2"], ["--rows", "5"], ["copy", "--indexes", "5"]],
)  # fmt: skip
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(SystemExit):
        parse_arguments(wrong)


def test_every_system_can_be_chosen_in_some_scenario():
    for name in SYSTEMS:
        found = []
        for scenario in DEFAULTS:
            options = Options(scenario, systems=(name,), rows=1)
            systems, refusals = chosen_systems(options, {})
            # Taken or refused with a reason, never left out.
            assert len(systems) + len(refusals) == 1
            found += systems
        assert {system.name for system in found} == {name}


def test_defaults_of_a_scenario_refuse_nobody():
    for options in DEFAULTS.values():
        assert chosen_systems(options, {})[1] == []


def test_what_cannot_be_had_is_told():
    systems, refusals = chosen_systems(
        Options("drain", systems=("native", "slony")), {"slony": "no package"}
    )
    assert [system.name for system in systems] == ["native"]
    assert [(r.system, r.reason, r.missing) for r in refusals] == [("slony", "no package", True)]


def test_what_a_package_script_says_is_the_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    with pytest.raises(UnavailableError, match="nonexistent"):
        fetch("pglogical.sh", str(tmp_path / "nonexistent"))


def test_weft_runs_once_for_each_number_of_writers():
    systems, _ = chosen_systems(Options("drain", systems=("native", "weft"), writers=(1, 8)), {})
    assert [system.label for system in systems] == ["native", "weft, 1 writers", "weft, 8 writers"]


def test_plugins_are_named_only_where_the_server_asks_for_it():
    build = Build("server", "17.11", Path("/"), restricts_plugins=True)
    expected = {"output_plugin_libraries": "pgoutput, test_decoding, weft"}
    assert build.with_plugin("weft") == expected
    assert Build("server", "17.5", Path("/")).with_plugin("weft") == {}


@pytest.mark.parametrize("kind", ["insert", "update", "delete"])
def test_large_statements_change_as_many_rows_as_asked_for(kind):
    contents = contents_of(Options("large", rows=1234, kind=kind), keyed=False)
    assert contents.statement.lower().startswith(kind)
    assert ("1234" in contents.statement) == (kind == "insert")


def load_of(name):
    return contents_of(Options("drain", scale=2, load=name), keyed=False)


def test_only_loads_of_our_own_have_a_script():
    assert load_of("tpcb").script is None
    assert load_of("tpcb").tables[-1] in load_of("tpcb").extent


@pytest.mark.parametrize("name", ["mixed", "wide"])
def test_rows_of_a_transaction_ascend(name):
    contents = load_of(name)
    ranges = re.findall(r"\\set (?:first|second|third) random\((\d+), (\d+)\)", contents.script)
    bounds = [int(bound) for pair in ranges for bound in pair]
    # each begins behind the one before, so that there are no deadlocks
    assert len(bounds) == 6 and bounds == sorted(set(bounds))
    assert bounds[0] == 1
    assert bounds[-1] <= contents.rows - contents.spared


@pytest.mark.parametrize("name", ["mixed", "wide"])
def test_scripts_use_what_there_is(name):
    contents = load_of(name)
    variables = set(re.findall(r"\\set (\w+) ", contents.script))
    assert set(re.findall(r"(?<!:):(\w+)", contents.script)) == variables
    statements = re.findall(r"UPDATE \w+ SET (.*?) WHERE", contents.script, re.DOTALL)
    changed = {name for text in statements for name in re.findall(r"(\w+) = ", text)}
    assert changed <= set(contents.columns)


def test_the_mixed_table_has_all_types_and_the_wide_one_a_hundred_columns():
    types = {type_ for type_, _ in load_of("mixed").columns.values()}
    assert types == {
        "numeric", "text", "jsonb", "integer[]", "text[]", "mixed_state", "mixed_place",
        "mixed_share", "timestamptz", "uuid", "bytea",
    }  # fmt: skip
    assert 1 + len(load_of("wide").columns) == 100


def test_processor_ticks_with_an_odd_program_name():
    stat = "17 (a b) c) S 1 17 17 0 -1 4194560 200 0 3 0 250 75 1 2 20 0 1 0 99"
    assert processor_ticks(stat) == 325


def test_private_memory_leaves_the_buffers_out():
    status = "Name:\tpostgres\nVmRSS:\t  900 kB\nRssAnon:\t     120 kB\nRssShmem:\t 700 kB\n"
    assert private_kb(status) == 120
    assert private_kb("Name:\tzombie\n") == 0


@pytest.mark.parametrize(
    ("backend_type", "application", "kind"),
    [("client backend", "weft bench", None), ("client backend", "pgbench", "pgbench"),
     ("client backend", "slon.node_2", "backends"), ("weft writer", "", "writers"),
     ("pglogical apply 5:123", "", "leader"), ("walsender", "bench", "walsender")],
)  # fmt: skip
def test_kinds_of_processes(backend_type, application, kind):
    assert kind_of(backend_type, application) == kind


def test_lines_of_pgbench():
    assert progress_rate("progress: 2.0 s, 4321.5 tps, lat 1.8 ms stddev 0.9, 0 failed") == 4321.5
    assert progress_rate("starting vacuum...end.") is None
    assert processed("number of transactions actually processed: 5000/5000") == 5000
    # with -T
    assert processed("number of transactions actually processed: 123") == 123
    assert filled_percent("700000 of 1000000 tuples (70%) of pgbench_accounts done") == 70


def test_summary():
    assert summarize([3.0, 1.0, 8.0]) == (3.0, 1.0, 8.0)


def test_rates_are_better_the_higher_and_times_the_lower():
    assert faster("drain_tps", 200, 100) == 2
    assert faster("applied_s", 200, 100) == 0.5


def test_values_are_shown_with_three_digits_that_mean_something():
    shown_values = [format_value(value) for value in (12345.6, 999.94, 12.345, 1.2345)]
    assert shown_values == ["12,346", "999.9", "12.3", "1.23"]


def test_ratios_are_those_of_each_repeat():
    results = Results()
    results.add([figure("native", value, repeat) for repeat, value in enumerate((90, 100, 500), 1)])
    results.add([figure("weft", value, repeat, 4) for repeat, value in enumerate((150, 160, 9), 1)])
    assert cells(results, "/native") == ["1.00", "1.60 (0.02 to 1.67)"]
    assert cells(results, "/physical") == ["-", "-"]


def test_passes_and_variants_have_tables_of_their_own():
    results = Results()
    results.add([figure("native", 1), figure("native", 2, pass_="later")])
    large = {"scenario": "large", "metric": "applied_s", "unit": "s", "pass_": None}
    results.add([figure("native", 3, **large), figure("native", 4, variant="update", **large)])
    titles = [title.split(":")[0] for title, _ in tables(results)]
    assert titles == ["drain, first pass", "drain, later pass", "large", "large, update"]


def test_loads_have_tables_of_their_own():
    results = Results()
    results.add([figure("native", 1), figure("native", 2, variant="mixed")])
    results.add([figure("weft", 3, writers=4, variant="mixed")])
    titles = [title.split(":")[0] for title, _ in tables(results)]
    assert titles == ["drain, first pass", "drain, mixed, first pass"]
    (_, plain), (_, mixed) = tables(results)
    assert (plain.row_count, mixed.row_count) == (1, 2)


def test_publisher_has_a_row_though_it_drains_nothing():
    results = Results()
    results.add([figure("publisher", 5000, metric="publisher_tps")])
    (_, speed), (_, cost) = tables(results)
    assert [list(c.cells) for c in speed.columns if c.header == "median"] == [["-"]]
    assert [list(c.cells) for c in cost.columns if c.header == "publisher/s"] == [["5,000"]]


def test_sustained_has_clients_across():
    results = Results()
    for clients, value in ((1, 900), (16, 5000)):
        for metric in ("publisher_tps", "catch_up_s", "sustained_tps"):
            results.add(
                [figure("native", value, metric=metric, scenario="sustained", pass_=None,
                        clients=clients)]
            )  # fmt: skip
    assert "sustained transactions/s, by clients" in shown(results)
    assert len(tables(results)) == 3


def test_file_is_complete_after_every_pass(tmp_path):
    file = tmp_path / "figures.json"
    results = Results(str(file))
    results.about = {"machine": {}, "settings": {}}
    for repeat in (1, 2):
        results.add([figure("native", 100, repeat)])
        about, *records = json.loads(file.read_text())
        assert about == results.about
        assert [record["repeat"] for record in records] == list(range(1, repeat + 1))
    assert records[0] == {
        "scenario": "drain", "system": "native", "server": "17.11", "clients": 8, "writers": None,
        "pass": "first", "metric": "drain_tps", "unit": "transactions/s", "repeat": 1, "value": 100,
    }  # fmt: skip
    text = file.read_text()
    assert figures_from_json(text + text) == (about, 2 * results.figures)


def test_variants_are_in_the_file(tmp_path):
    file = tmp_path / "figures.json"
    results = Results(str(file))
    results.add([figure("native", 100, variant="wide")])
    assert json.loads(file.read_text())[1]["variant"] == "wide"
    assert figures_from_json(file.read_text())[1] == results.figures


def test_failures_are_in_the_file(tmp_path):
    results = Results(str(tmp_path / "figures.json"))
    results.note("failed", scenario="drain", system="slony", reason="gone")
    (about,) = json.loads((tmp_path / "figures.json").read_text())
    assert about["failed"] == [{"scenario": "drain", "system": "slony", "reason": "gone"}]


def test_settings_are_shown_as_lines():
    values = {"a": {"b": {"c": 1, "d": 2}}, "e": {"f": 3}, "g": 4}
    assert as_lines(values) == ["a:", "  b: c = 1, d = 2", "e: f = 3", "g: 4"]


def test_every_system_has_a_colour_of_its_own():
    assert set(charts.COLOURS) == set(SYSTEMS)
    assert len(set(charts.COLOURS.values())) == len(SYSTEMS)


def test_charts_of_every_scenario():
    figures = [
        figure(system, value, repeat, writers, pass_=pass_)
        for system, writers, value in (("native", None, 9), ("weft", 1, 8), ("weft", 4, 12))
        for repeat in (1, 2)
        for pass_ in ("first", "later")
    ]
    for metric in ("publisher_tps", "catch_up_s", "sustained_tps"):
        figures += [
            figure("native", 5, metric=metric, scenario="sustained", pass_=None, clients=clients)
            for clients in (1, 8)
        ]
    figures.append(
        figure("native", 3, scenario="large", metric="applied_s", pass_=None, variant="update")
    )
    figures.append(
        figure("native", 4, scenario="sustained", metric="sustained_tps", pass_=None, clients=1,
               variant="20ms, 100mbit")
    )  # fmt: skip
    figures += [
        figure("weft", value, writers=writers, variant="mixed", pass_=pass_)
        for writers, value in ((1, 4), (4, 6))
        for pass_ in ("first", "later")
    ]
    files = charts.Charts(figures, {"machine": {"cpu": "some", "cores": 2}}).draw()
    assert set(files) == {
        "drain.png", "drain-writers-first.png", "drain-writers-later.png",
        "sustained-publisher.png", "sustained-catch-up.png", "sustained-rate.png",
        "large-update.png", "sustained-rate-20ms-100mbit.png",
        "drain-mixed.png", "drain-mixed-writers-first.png", "drain-mixed-writers-later.png",
    }  # fmt: skip
    assert all(content.startswith(b"\x89PNG") for content in files.values())


def test_charts_go_into_a_directory_or_an_archive(tmp_path):
    charts.write_charts({"a.png": b"picture"}, str(tmp_path / "charts"))
    assert (tmp_path / "charts" / "a.png").read_bytes() == b"picture"
    archive = tmp_path / "charts.tar"
    # closed by whom it is given to, as the reader of a pipe wants it
    charts.write_charts({"a.png": b"picture"}, os.open(archive, os.O_WRONLY | os.O_CREAT))
    with tarfile.open(archive) as made:
        assert made.extractfile("a.png").read() == b"picture"


@pytest.mark.parametrize(
    ("position", "end"),
    [
        (3 * 8192, 3 * 8192),
        (3 * 8192 + 24, 3 * 8192),
        (3 * 8192 + 32, 3 * 8192 + 32),
        (3 * 8192 + 40, 3 * 8192 + 40),
        (5 * 2**24 + 40, 5 * 2**24),
        (5 * 2**24 + 48, 5 * 2**24 + 48),
    ],
)
def test_position_on_a_new_page_of_wal_is_before_its_header(position, end):
    assert end_of_records(position, 8192, 2**24) == end
