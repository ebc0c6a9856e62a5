"""Tiny runs of loads, systems and options: whether they work, and contents are equal.

Started by bench/smoke.sh, which takes pytest's arguments; not part of "make check".  A figure is
recorded only after contents have been compared and B-trees checked, so its presence is the proof.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent.parent / "run.py"
# Seconds for one run on a machine that does other things as well.
TIMEOUT = 1500

DRAIN = ("drain", "--transactions", "2000", "--scale", "1", "--passes", "first")
LINE = ("--rtt", "4ms", "--rate", "100mbit")


def run(tmp_path, *arguments):
    """Returns what the run was, and its figures."""
    file = tmp_path / "figures.json"
    process = subprocess.run(
        (sys.executable, str(RUN), *arguments, "--repeats", "1", "--smoke", "--json", str(file)),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT,
    )  # fmt: skip
    print(process.stdout, process.stderr)
    about, *figures = json.loads(file.read_text())
    assert process.returncode == 0, about.get("failed")
    if "skipped" in about:
        pytest.skip(about["skipped"][0]["reason"])
    return about, figures


def values(figures, metric, **wanted):
    return [
        figure["value"]
        for figure in figures
        if figure["metric"] == metric
        and all(figure.get(name) == value for name, value in wanted.items())
    ]


def systems(figures, metric):
    return {figure["system"] for figure in figures if figure["metric"] == metric}


@pytest.mark.parametrize("load", ["uuid", "composite", "tpcc"])
def test_loads(tmp_path, load):
    _, figures = run(tmp_path, *DRAIN, "--load", load, "--systems", "native,weft,weft-strict")
    assert systems(figures, "drain_tps") == {"native", "weft", "weft-strict"}
    assert {figure["variant"] for figure in figures} == {load}
    (strict,) = values(figures, "commits_per_txn", system="weft-strict")
    (shared,) = values(figures, "commits_per_txn", system="weft")
    assert shared < strict and 0.99 < strict < 1.2
    assert values(figures, "updates_left_out", system="weft-strict") in ([], [0])


def test_shared_backlogs(tmp_path):
    sharing = ("publisher", "physical", "native", "weft", "weft-stock")
    _, figures = run(
        tmp_path, "drain", "--transactions", "2000", "--scale", "1",
        "--systems", ",".join((*sharing, "weft-group")),
    )  # fmt: skip
    assert systems(figures, "drain_tps") == {*sharing[1:], "weft-group"}
    assert systems(figures, "publisher_tps") == {"publisher", "weft-group"}
    for pass_ in ("first", "later"):
        wal = [
            values(figures, "publisher_wal_per_txn", system=name, **{"pass": pass_})
            for name in sharing
        ]
        assert wal[0] and wal == 5 * wal[:1]


def test_loads_with_clients(tmp_path):
    _, figures = run(
        tmp_path, "sustained", "--load", "tpcc", "--scale", "2", "--clients", "2", "--seconds", "3",
        "--systems", "publisher,weft", "--writers", "1,3", "--cpus", "0/0",
    )  # fmt: skip
    assert {f["writers"] for f in figures if f["metric"] == "sustained_tps"} == {None, 1, 3}


def test_groups(tmp_path):
    _, figures = run(
        tmp_path, *DRAIN, "--systems", "physical,native-timestamps,weft-timestamps,weft-group"
    )
    assert len(systems(figures, "drain_tps")) == 4
    assert systems(figures, "confirmed_s") == systems(figures, "drain_tps")


def test_group_of_three(tmp_path):
    _, figures = run(
        tmp_path, "sustained", "--scale", "3", "--clients", "2", "--seconds", "4",
        "--systems", "weft-group-3",
    )  # fmt: skip
    assert values(figures, "sustained_tps")[0] > 0


def test_synchronous(tmp_path):
    _, figures = run(
        tmp_path, "sustained", "--scale", "1", "--clients", "2", "--seconds", "3",
        "--synchronous", "publisher", "--systems", "publisher,physical,native,weft",
    )  # fmt: skip
    assert len(systems(figures, "sustained_tps")) == 4
    _, figures = run(tmp_path, *DRAIN, "--synchronous", "subscription", "--systems", "native,weft")
    assert len(systems(figures, "confirmed_s")) == 2


def test_copies(tmp_path):
    _, figures = run(
        tmp_path, "copy", "--rows", "200000", "--indexes", "2",
        "--systems", "native,native-deferred,plain,weft",
    )  # fmt: skip
    assert len(systems(figures, "copy_s")) == 4


def test_lag(tmp_path):
    _, figures = run(
        tmp_path, "lag", "--scale", "1", "--clients", "2", "--seconds", "5", "--steps", "50%,40",
        "--systems", "physical,native,weft",
    )  # fmt: skip
    assert len(values(figures, "native_limit_tps")) == 1
    for name in ("physical", "native", "weft"):
        p50, p99, most = (
            values(figures, f"lag_{which}_ms", system=name) for which in ("p50", "p99", "max")
        )
        assert len(p50) == 2
        assert all(0 < low <= high <= top for low, high, top in zip(p50, p99, most))


@pytest.mark.parametrize(
    "arguments",
    [(*DRAIN, "--systems", "physical,native,weft,weft-lz4"),
     ("large", "--rows", "20000", "--systems", "native-parallel,weft,weft-lz4"),
     ("copy", "--rows", "100000", "--systems", "physical,native,plain,weft"),
     ("sustained", "--scale", "1", "--clients", "2", "--seconds", "3", "--systems",
      "native,weft-group")],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_slow_line(tmp_path, arguments):
    about, figures = run(tmp_path, *arguments, *LINE)
    (link,) = about["link"]
    # A busy machine may make a line slower, but not faster.
    assert link["rtt_ms"] >= 4 and link["mbit"] <= 110
    asked = set(arguments[arguments.index("--systems") + 1].split(","))
    assert {figure["system"] for figure in figures} == asked


def test_queues_in_tables(tmp_path):
    about, figures = run(tmp_path, *DRAIN, "--systems", "slony,londiste")
    if "missing" in about:
        pytest.skip(about["missing"][0]["reason"])
    assert len(systems(figures, "drain_tps")) == 2


def test_provenance(tmp_path):
    about, _ = run(tmp_path, *DRAIN, "--systems", "native", "--commit", "0123abc dirty")
    provenance = about["provenance"]
    assert (provenance["commit"], provenance["dirty"]) == ("0123abc", True)
    assert "-O2" in provenance["build"]["cflags"]
    in_force = about["in_force"]["drain, native"]["subscriber"]
    assert in_force["autovacuum"] == "off" and "data_directory" not in in_force
    assert os.environ.get("WEFT_CACHE", "/nowhere") not in json.dumps(about)
