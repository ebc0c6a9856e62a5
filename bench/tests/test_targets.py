"""Tests of bench/targets that need no server: pytest bench/tests"""

import json
import subprocess

import pytest
import targets as program
from weft_bench.arguments import parse_arguments
from weft_bench.figures import Figure, Results
from weft_bench.systems import chosen_systems
from weft_bench.targets import (
    MORE_RUNS,
    RUNS,
    Target,
    lag_to_native,
    more_writers,
    ratio,
    to_median,
    values,
)


def figure(system, value, repeat=1, **other):
    values = {
        "scenario": "drain", "server": "17.11", "clients": 8, "metric": "drain_tps", "unit": "",
        "pass_": "first", "writers": None, **other,
    }  # fmt: skip
    return Figure(system=system, repeat=repeat, value=value, **values)


@pytest.mark.parametrize("run", [*RUNS, *MORE_RUNS], ids=lambda run: run.name)
def test_runs_are_possible(run):
    (options,) = parse_arguments(list(run.arguments)).scenarios
    assert chosen_systems(options, {})[1] == []
    assert run.minutes > 0


def test_names_are_unique():
    names = [run.name for run in (*RUNS, *MORE_RUNS)]
    assert len(names) == len(set(names))


def test_every_target_can_be_missing():
    for run in RUNS:
        assert run.targets
        for target in run.targets:
            assert target.check([]) == (None, False)


def test_ratios_of_passes():
    figures = [figure("native", 10), figure("weft", 31, writers=4), figure("native", 10, 2),
               figure("weft", 29, 2, writers=4), figure("weft", 5, pass_="later")]  # fmt: skip
    target = Target("", 3.0, ratio("drain_tps", "weft", "native", pass_="first"))
    assert target.check(figures) == ((3.0, 2.9, 3.1), True)
    assert Target("", 3.01, target.find).check(figures)[1] is False
    assert Target("", 3.0, target.find, worst=True).check(figures)[1] is False


def test_bounds_above():
    """A large transaction takes at most so much longer than on the publisher alone."""
    figures = [
        figure(system, value, scenario="large", metric="applied_s", pass_=None)
        for system, value in (("publisher", 10), ("weft", 13))
    ]
    find = ratio("applied_s", "publisher", "weft")
    found, met = Target("", 1.35, find, at_most=True).check(figures)
    assert found.median == pytest.approx(1.3) and met
    assert not Target("", 1.25, find, at_most=True).check(figures)[1]


def test_the_slowest_of_many_runs_counts():
    figures = [figure("native", value, n) for n, value in enumerate((9, 10, 11))]
    figures += [figure("weft", value, n) for n, value in enumerate((30, 31, 19))]
    find = to_median("drain_tps", "weft", "native")
    assert find(figures) == (3.0, 1.9, 3.1)
    assert not Target("", 2.0, find, worst=True).check(figures)[1]
    assert Target("", 2.8, find).check(figures)[1]


def test_more_writers_are_compared_with_the_best_of_fewer():
    figures = [
        figure("weft", value, writers=writers, pass_=pass_)
        for pass_, rates in (("first", (100, 120, 105)), ("later", (100, 90, 100)))
        for writers, value in zip((1, 2, 4), rates)
    ]
    found = more_writers("weft")(figures)
    assert found.minimum == pytest.approx(0.875) and found.maximum == pytest.approx(1.2)
    assert more_writers("weft-stock")(figures) is None


def test_lags_are_compared_at_each_rate():
    figures = [
        figure(system, value, scenario="lag", metric="lag_p99_ms", pass_=None, rate=rate)
        for system, rate, value in (
            ("native", 100, 10), ("weft", 100, 5), ("native", 200, 10), ("weft", 200, 20),
        )
    ]  # fmt: skip
    assert lag_to_native(0)(figures).median == 0.5
    assert lag_to_native(1)(figures).median == 2.0
    assert lag_to_native(1)(figures[:2]) is None


def test_values_by_clients():
    figures = [figure("weft", 7, clients=1), figure("weft", 9, clients=16)]
    assert values("drain_tps", "weft", clients=16)(figures) == (9, 9, 9)


def write(file, commit, *figures):
    results = Results(str(file))
    results.about = {"provenance": {"commit": commit, "dirty": False}}
    results.add(list(figures))


def test_what_has_been_reached_is_shown(tmp_path, capsys):
    both = [
        figure(system, value, pass_=pass_)
        for pass_ in ("first", "later")
        for system, value in (("native", 10), ("weft", 26))
    ]
    write(tmp_path / "drain-short.json", "0123abcd", *both)
    (run,) = (run for run in RUNS if run.name == "drain-short")
    assert program.show([run], tmp_path, "0123abcd")
    assert capsys.readouterr().out.count("met        backlog of 40,000") == 2
    assert program.show([run], tmp_path, "4567abcd")
    assert "another commit" in capsys.readouterr().out
    assert not program.show(list(RUNS), tmp_path, "0123abcd")
    assert "missing    weft / physical, first pass: at least 0.9; run drain" in (
        capsys.readouterr().out
    )


def test_what_has_been_measured_is_not_repeated(tmp_path, monkeypatch, capsys):
    measured = []

    def measure(run, directory):
        measured.append(run.name)
        write(directory / f"{run.name}.json", "0123abcd", figure("native", 1))
        return True

    monkeypatch.setattr(program, "measure", measure)
    arguments = ["targets", "--to", str(tmp_path), "--only", "drain,groups", "--commit", "0123abcd"]
    monkeypatch.setattr("sys.argv", arguments)
    assert program.main() == 1
    (tmp_path / "groups.json").unlink()
    program.main()
    assert measured == ["drain", "groups", "groups"]
    # changed files, another commit
    monkeypatch.setattr("sys.argv", [*arguments[:-1], "0123abcd dirty"])
    program.main()
    assert measured[3:] == ["drain", "groups"]
    monkeypatch.setattr("sys.argv", [*arguments[:-1], "4567abcd", "--minutes", "30"])
    program.main()
    assert measured[5:] == ["groups"]
    assert "drain: not begun" in capsys.readouterr().out


def test_a_file_that_is_not_complete_is_measured_again(tmp_path):
    file = tmp_path / "drain.json"
    assert program.read(file) == ({}, [])
    file.write_text(json.dumps([{}])[:-1])
    assert program.read(file) == ({}, [])


def test_a_commit_to_documents_changes_nothing_that_is_measured(tmp_path):
    def git(*arguments):
        git = ("git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org")
        return subprocess.run([*git, *arguments], check=True, capture_output=True, text=True).stdout

    def commit(file):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(file)
        git("add", ".")
        git("commit", "-qm", file)
        return git("rev-parse", "HEAD").strip()

    git("init", "-q")
    measured = commit("src/weft.c")
    about = {"provenance": {"commit": measured, "dirty": False}}
    for file in ("docs/index.md", "README.md", "test/x.pl", "bench/README.md"):
        assert program.is_of(about, commit(file), tmp_path)
    now = commit("bench/results/drain.json")
    assert not program.is_of(about, f"{now} dirty", tmp_path)
    assert not program.is_of(about, "0123abcd", tmp_path)
    assert not program.is_of({"provenance": {"commit": measured, "dirty": True}}, now, tmp_path)
    assert not program.is_of(about, commit("bench/weft.py"), tmp_path)
    assert not program.is_of(about, commit("src/docs.c"), tmp_path)
