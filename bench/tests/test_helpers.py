"""Tests of what needs no server: pytest bench/tests"""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from weft_bench.arguments import parse_arguments
from weft_bench.figures import Figure, Results, summarize
from weft_bench.load import filled_percent, processed, progress_rate
from weft_bench.processes import processor_ticks


def figure(system, value, repeat=1, writers=None, **other):
    values = dict(metric="drain_tps", unit="transactions/s", pass_="first", process=None, **other)
    return Figure(
        scenario="drain", system=system, server="17.11", clients=8, writers=writers,
        repeat=repeat, value=value, **values,
    )  # fmt: skip


def test_transactions_are_rounded_up_to_the_clients():
    (options,) = parse_arguments(["drain", "--transactions", "5001", "--clients", "8"]).scenarios
    assert options.transactions_per_client * options.clients == 5008


def test_defaults_depend_on_the_scenario():
    (options,) = parse_arguments(["io-drain"]).scenarios
    assert (options.transactions, options.scale, options.writers) == (20_000, 200, (8,))
    assert [o.scenario for o in parse_arguments([]).scenarios] == ["drain", "io-drain"]


@pytest.mark.parametrize(
    "wrong",
    [["drain", "--systems", "nativ"], ["drain", "--writers", "0"], ["drain", "--writers", "65"],
     ["rain"], ["drain", "--passes", "last"]],
)  # fmt: skip
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(SystemExit):
        parse_arguments(wrong)


def test_processor_ticks_with_an_odd_program_name():
    stat = "17 (a b) c) S 1 17 17 0 -1 4194560 200 0 3 0 250 75 1 2 20 0 1 0 99"
    assert processor_ticks(stat) == 325


def test_lines_of_pgbench():
    assert progress_rate("progress: 2.0 s, 4321.5 tps, lat 1.8 ms stddev 0.9, 0 failed") == 4321.5
    assert progress_rate("starting vacuum...end.") is None
    assert processed("number of transactions actually processed: 5000/5000") == 5000
    assert filled_percent("700000 of 1000000 tuples (70%) of pgbench_accounts done") == 70


def test_summary():
    assert summarize([3.0, 1.0, 8.0]) == (3.0, 1.0, 8.0)


def test_ratio_is_that_of_the_medians():
    results = Results(None)
    results.add([figure("native", value, repeat) for repeat, value in enumerate((90, 100, 500), 1)])
    results.add([figure("weft", value, repeat, 4) for repeat, value in enumerate((150, 160, 9), 1)])
    (table,) = results.tables()
    assert list(table.columns[5].cells) == ["1.00", "1.50"]


def test_without_native_there_is_no_ratio():
    results = Results(None)
    results.add([figure("weft", 150, 1, 4)])
    assert list(results.tables()[0].columns[5].cells) == ["-"]


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
