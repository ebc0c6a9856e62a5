"""Tests of calculations, options and programs that need no server: pytest bench/tests"""

import re

import pytest
from weft_bench.accounts import Cost, lsn
from weft_bench.arguments import ENOUGH_TRANSACTIONS, LOADS, Options, parse_arguments
from weft_bench.commit import parse_commit
from weft_bench.errors import BenchError
from weft_bench.figures import Figure, Results
from weft_bench.line import Line as SlowLine
from weft_bench.link_setup import netem_arguments
from weft_bench.loads import contents_of
from weft_bench.place import Place
from weft_bench.quiet import Processors, Use, parse_processors, use_between
from weft_bench.ratios import paired, paired_ratios, per, percentile, slowdown
from weft_bench.relay import Line
from weft_bench.scenarios.lag import absolute, evaluate, parse_samples
from weft_bench.session import rotated
from weft_bench.systems import chosen_systems
from weft_bench.tables import tables


def figure(system, value, repeat=1, **other):
    values = {
        "scenario": "drain", "server": "17.11", "clients": 8, "metric": "drain_tps", "unit": "",
        "pass_": "first", "writers": None, **other,
    }  # fmt: skip
    return Figure(system=system, repeat=repeat, value=value, **values)


def parsed(*arguments):
    (options,) = parse_arguments(list(arguments)).scenarios
    return options


def columns(table):
    return {column.header: list(column.cells) for column in table.columns}


# Calculations


def test_percentiles_are_values_that_were_measured():
    values = list(range(1, 101))
    assert [percentile(values, p) for p in (0, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert percentile([3, 1, 2], 50) == 2
    assert percentile([1, 2], 99) == 2
    assert percentile([7], 1) == 7
    with pytest.raises(ValueError):
        percentile([], 50)


def test_ratios_pair_repeats():
    native = [figure("native", value, repeat) for repeat, value in enumerate((100, 200, 400), 1)]
    weft = [figure("weft", value, repeat) for repeat, value in enumerate((300, 400, 400), 1)]
    assert paired_ratios(weft, native) == [3, 2, 1]
    assert paired(weft, native) == (2, 1, 3)
    # what the reference lacks has no ratio, whatever the order
    assert paired_ratios(weft, native[::-1][:2]) == [2, 1]
    assert paired(weft, []) is None


def test_ratios_pair_what_is_alike_only():
    native = [figure("native", 100, pass_="later")]
    assert paired_ratios([figure("weft", 300)], native) == []
    assert paired_ratios([figure("weft", 300, pass_="later")], native) == [3]
    for name, value in (("clients", 1), ("variant", "tpcc"), ("rate", 5), ("scenario", "io-drain")):
        assert paired_ratios([figure("weft", 300, pass_="later", **{name: value})], native) == []


def test_ratios_of_times_are_inverted():
    native, weft = (
        figure(system, value, metric="applied_s") for system, value in (("native", 9), ("weft", 3))
    )
    assert paired_ratios([weft], [native]) == [3]


def test_shares():
    assert per(10, 4) == 2.5 and per(10, 0) == 0
    assert slowdown(200, 150) == 25 and slowdown(0, 5) == 0


def test_costs_are_per_transaction():
    cost = Cost(100, 5000, 7000, 20, updates=300, left_out=30)
    assert {name: value for name, (_, value) in cost.metrics.items()} == {
        "publisher_wal_per_txn": 50, "subscriber_wal_per_txn": 70, "commits_per_txn": 0.2,
        "updates_left_out": 10,
    }  # fmt: skip
    # what was not measured is not 0
    assert set(Cost(100, 5000).metrics) == {"publisher_wal_per_txn"}


def test_positions_are_written_as_the_server_does():
    assert lsn(0x1_0000_00AB) == "1/AB"


def test_processors():
    start = parse_processors("cpu  100 0 50 800 40 0 10 0 7 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    assert start == Processors(1000, 840, 0)
    end = parse_processors("cpu  150 0 60 850 50 0 10 80 9 0\n")
    use = use_between(start, end)
    assert (use.idle, use.steal) == (30, 40)
    assert use_between(start, start) == Use(100, 0)
    assert Use(99, 0).quiet and not Use(90, 0).quiet and not Use(99, 5).quiet
    # old kernels have fewer fields
    assert parse_processors("cpu 1 2 3 4") == Processors(10, 4, 0)


# Lag


def test_rates_may_be_relative():
    assert absolute(("50%", "90%", "1_000"), 4001.0) == ("2000", "3601", "1000")
    assert absolute(("700",), None) == ("700",)
    assert absolute(("1%",), 3.0) == ("1",)


def test_samples_are_taken_from_what_a_session_says():
    said = ["5 0.010000", "something else", "6 0.020000", "9 0.5", "4 0.1", "7 -"]
    assert parse_samples(said, 5, 8) == {5: 0.01, 6: 0.02}


def test_lags_in_milliseconds_without_the_warm_up():
    samples = dict.fromkeys(range(1, 11), 9.0) | {
        mark: (mark - 10) / 1000 for mark in range(11, 111)
    }
    found = evaluate(samples, 1, 10)
    assert {name: round(value, 6) for name, value in found.items()} == {
        "p50": 50, "p95": 95, "p99": 99, "max": 100, "end": 95,
    }  # fmt: skip
    with pytest.raises(BenchError):
        evaluate(samples, 1, 500)


# Slow lines


def test_frames_are_sent_one_after_the_other_and_then_travel():
    line = Line(delay=0.01, bytes_per_second=1000)
    line.put(5.0, b"x" * 100)
    line.put(5.0, b"y" * 50)
    assert line.next_arrival() == pytest.approx(5.11)
    assert line.arrived(5.1) == []
    assert line.arrived(5.12) == [b"x" * 100]
    assert line.arrived(6.0) == [b"y" * 50]
    assert line.next_arrival() is None
    # an idle line begins at once
    line.put(7.0, b"z" * 100)
    assert line.next_arrival() == pytest.approx(7.11)


def test_a_line_without_a_rate_only_delays():
    line = Line(delay=0.5, bytes_per_second=0)
    for _ in range(3):
        line.put(1.0, b"x" * 1500)
    assert len(line.arrived(1.5)) == 3


def test_frames_that_do_not_fit_are_lost():
    line = Line(delay=10, bytes_per_second=100, limit=2)
    for _ in range(3):
        line.put(0.0, b"x" * 100)
    assert line.lost == 1
    # what has left makes room, even if it has not arrived
    line.put(1.5, b"x" * 100)
    assert line.lost == 1 and len(line.travelling) == 3


def test_lines_have_the_names_of_the_options():
    assert SlowLine(0.02, 100e6).name == "20ms, 100mbit"
    assert SlowLine(0.0).name == "0ms"
    assert netem_arguments(0.02, 100e6) == ["netem", "delay", "10000us", "rate", "100000000bit"]
    assert netem_arguments(0.001, 0) == ["netem", "delay", "500us"]


def test_commands_of_a_place():
    assert Place().prefix == ()
    assert Place(("nsenter",), "0-1").prefix == ("nsenter", "taskset", "--cpu-list", "0-1")


# Provenance


@pytest.mark.parametrize(
    ("text", "commit", "dirty"),
    [("0123abcd", "0123abcd", False), ("0123abcd dirty", "0123abcd", True), ("", None, None),
     (None, None, None), ("dirty", None, None)],
)  # fmt: skip
def test_commits(text, commit, dirty):
    assert parse_commit(text) == {"commit": commit, "dirty": dirty}


def test_settings_are_noted_once():
    results = Results()
    results.note_once("in_force", "drain, weft", {"a": 1})
    results.note_once("in_force", "drain, weft", {"a": 2})
    assert results.about == {"in_force": {"drain, weft": {"a": 1}}}


# Options


def test_whatever_cannot_be_compared_is_in_the_variant():
    assert parsed("drain", "--rtt", "20ms", "--rate", "100mbit").variant == "20ms, 100mbit"
    assert parsed("copy", "--indexes", "2", "--rtt", "0ms").variant == "2 indexes, 0ms"
    assert parsed("sustained", "--load", "tpcc", "--synchronous", "publisher").variant == (
        "tpcc, synchronous publisher"
    )
    assert parsed("lag", "--cpus", "0/1").variant == "separate processors"
    assert parsed("drain", "--cpus", "0-1,4/2").cpus == ("0-1,4", "2")


@pytest.mark.parametrize(
    "wrong",
    [["drain", "--rate", "100mbit"], ["drain", "--rtt", "20"], ["drain", "--rtt", "20ms",
     "--rate", "100"], ["drain", "--cpus", "0"], ["drain", "--steps", "50%"],
     ["lag", "--steps", "x%"], ["lag", "--steps", "0"], ["drain", "--synchronous", "publisher"],
     ["large", "--synchronous", "subscription"], ["drain", "--synchronous", "both"]],
)  # fmt: skip
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(SystemExit):
        parse_arguments(wrong)


def test_every_load_has_a_size_and_contents():
    assert set(ENOUGH_TRANSACTIONS) == set(LOADS)
    for load in LOADS:
        assert parsed("drain", "--load", load).transactions == ENOUGH_TRANSACTIONS[load]
        assert contents_of(Options("drain", load=load), keyed=False).tables


def reasons(*names, **options):
    _, refusals = chosen_systems(Options(systems=names, **options), {})
    return [refusal.system for refusal in refusals]


def test_systems_that_cannot_take_part_say_so():
    line = {"rtt": 0.02}
    assert reasons("native", "slony", "weft-group-3", scenario="sustained", **line) == [
        "slony", "weft-group-3"
    ]  # fmt: skip
    assert reasons("weft-group", "weft-group-3", "native-deferred", scenario="drain") == [
        "weft-group-3", "native-deferred"
    ]  # fmt: skip
    assert reasons("weft-group-3", scenario="sustained", load="tpcc") == ["weft-group-3"]
    assert reasons("weft-group", "publisher", scenario="copy") == ["weft-group", "publisher"]
    assert reasons(
        "publisher", "native", "slony", scenario="sustained", synchronous=("publisher",)
    ) == ["slony"]


def test_the_order_rotates():
    systems = ["a", "b", "c"]
    assert [rotated(systems, repeat) for repeat in (1, 2, 3, 4)] == [
        ["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]
    ]  # fmt: skip
    assert rotated([], 1) == []


# Loads


@pytest.mark.parametrize("load", ["uuid", "composite"])
def test_rows_of_a_transaction_ascend(load):
    script = contents_of(Options("drain", scale=2, load=load), keyed=False).script
    bounds = [int(n) for pair in re.findall(r"random\((\d+), (\d+)\)", script) for n in pair]
    assert len(bounds) == 6 and bounds == sorted(set(bounds)) and bounds[-1] <= 200_000
    assert set(re.findall(r"(?<!:):(\w+)", script)) == set(re.findall(r"\\set (\w+) ", script))


def test_orders_use_what_there_is():
    contents = contents_of(Options("drain", scale=3, load="tpcc"), keyed=False)
    script = contents.script
    assert set(re.findall(r"(?<!:):(\w+)", script)) <= set(re.findall(r"\\set (\w+) ", script))
    assert "random(1, 3)" in script
    assert len(contents.tables) == 9


def test_members_write_to_different_branches():
    contents = contents_of(Options("sustained", scale=8), keyed=False)
    found = set()
    for member in range(3):
        script = contents.member_script(member, 3)
        begin, step, last = map(
            int, re.search(r"branch (\d+) \+ (\d+) \* random\(0, (\d+)\)", script).groups()
        )
        branches = {begin + step * number for number in range(last + 1)}
        assert not found & branches
        found |= branches
    assert found == set(range(8))


# Tables


def test_what_a_system_costs_has_a_table():
    results = Results()
    results.add([figure("publisher", 1000, metric="publisher_tps")])
    for metric, value in (
        ("drain_tps", 5000), ("drain_s", 4), ("publisher_tps", 900), ("commits_per_txn", 0.01),
        ("updates_left_out", 12), ("idle_before", 50), ("steal_before", 0), ("steal_during", 3),
    ):  # fmt: skip
        results.add([figure("weft", value, metric=metric)])
    (_, _), (_, cost) = tables(results)
    shown = columns(cost)
    assert shown["slower"] == ["0.0 %", "10.0 %"]
    assert shown["left out"] == ["-", "12.0 %"]
    assert shown["s"] == ["-", "4 (short)"]
    assert shown["idle before"] == ["-", "50 % (busy)"]
    assert shown["stolen"] == ["-", "3.0 % (busy)"]


def test_lag_has_rates_down():
    results = Results()
    for rate in (200, 100):
        for name in ("p50", "p95", "p99", "max", "end"):
            results.add(
                [figure("weft", rate / 10, metric=f"lag_{name}_ms", scenario="lag", pass_=None,
                        rate=rate)]
            )  # fmt: skip
    ((_, table),) = tables(results)
    assert columns(table)["rate"] == ["100", "200"]
    assert columns(table)["p99"] == ["10.0", "20.0"]


def test_rates_are_in_the_file():
    assert figure("weft", 1, rate=100).as_json()["rate"] == 100
    assert "rate" not in figure("weft", 1).as_json()
