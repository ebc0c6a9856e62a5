"""The bars and factors of the demo: what they show is what was measured."""

import io
from pathlib import Path

import demo
import demo_group
import pytest
from demo_common import Server, readable
from demo_race import Bar, Contender, Race, Run, Work
from rich.console import Console, RenderableType

WORK = Work("a backlog", 1000, "", "", "", 1.0)


def contender(name: str, directory: Path) -> Contender:
    return Contender(name, Server(directory / name, ""), name, "pgoutput", name != "alone")


@pytest.fixture
def race(tmp_path: Path) -> Race:
    return Race(WORK, [contender(name, tmp_path) for name in ("alone", "one", "both")])


def lines(what: RenderableType, width: int = 80, encoding: str = "utf-8") -> list[str]:
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=output, width=width, color_system=None).print(what)
    output.seek(0)
    return output.read().splitlines()


def run_of(race: Race, number: int, samples: list[tuple[float, float]], seconds: float) -> Run:
    run = race.runs[number]
    for moment, share in samples:
        run.add(moment, share)
    run.seconds = seconds
    return run


def test_a_replay_is_between_the_samples(race: Race) -> None:
    run = run_of(race, 0, [(1, 0.1), (3, 0.5)], 4)
    assert run.share_at(0) == 0
    assert run.share_at(1) == pytest.approx(0.1)
    assert run.share_at(2) == pytest.approx(0.3)
    assert run.share_at(3.5) == pytest.approx(0.5)
    assert run.share_at(4) == 1


def test_an_unfinished_run_neither_moves_back_nor_looks_finished(race: Race) -> None:
    run = race.runs[0]
    for moment, share in ((1, 0.5), (2, 0.4), (3, 1.7)):
        run.add(moment, share)
    assert [share for _, share in run.samples] == [0, 0.5, 0.5, 0.99]
    assert run.share_at(100) == 0.99


def test_factors_compare_with_the_first(race: Race) -> None:
    for number, seconds in enumerate((9, 6, 3)):
        run_of(race, number, [], seconds)
    assert [race.factor(run) for run in race.runs] == [1, 1.5, 3]
    alone, one, both = lines(race.result())
    assert "9.0 s" in alone and "111/s" in alone and "times" not in alone
    assert "6.0 s" in one and "167/s" in one and "1.5 times as fast" in one
    assert "3.0 s" in both and "333/s" in both and "3.0 times as fast" in both
    # the bars are as long as the times
    assert both.count("━") == pytest.approx(alone.count("━") / 3, abs=1)
    assert one.count("━") == pytest.approx(alone.count("━") / 1.5, abs=1)


@pytest.mark.parametrize("width", [80, 160])
def test_bars_side_by_side_fit(race: Race, width: int) -> None:
    run_of(race, 0, [(1, 0.1), (2, 0.2)], 10)
    current = race.runs[1]
    current.add(1, 0.5)
    picture = lines(race.picture(current, 1.0), width)
    alone, one, both, remark = picture
    assert all(len(line) <= width for line in picture)
    assert "10%" in alone and "10.0 s" in alone
    assert "50%" in one and "1.0 s" in one
    assert "waits" in both and "━" not in both
    assert "replayed" in remark
    # without colors, too, one sees where a bar ends
    assert one.count("━") == pytest.approx(one.count("─"), abs=1)


def test_a_bar_needs_no_unicode() -> None:
    assert lines(Bar(0.25, "green", track=True), 8, "ascii") == ["==------"]
    assert lines(Bar(0.25, "green"), 8) == ["━━"]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (4200, "4.2 kB"), (12_345_678_901, "12.3 GB")]
)
def test_sizes_are_readable(size: float, text: str) -> None:
    assert readable(size) == text


def test_what_can_be_typed_fits_into_80_columns() -> None:
    directory = Path("/tmp/weft-demo-12345678")
    for text in (
        demo.to_try(directory),
        demo.to_type_next(),
        demo_group.TO_TRY.format(directory=directory),
        demo_group.to_type_next(),
    ):
        assert max(map(len, text.splitlines())) <= 80
