"""Tests of backlogs and documents that need no server: pytest bench/tests"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from weft_bench import backlog
from weft_bench.arguments import SYSTEMS, parse_arguments
from weft_bench.backlog import Backlog, Shared, seed_of
from weft_bench.build import Build
from weft_bench.documents import BEGIN, command_of, outdated, renewed
from weft_bench.errors import BenchError
from weft_bench.figures import Figure, Results
from weft_bench.loads import contents_of
from weft_bench.pair import Pair
from weft_bench.scenarios import SCENARIOS
from weft_bench.session import shared_backlogs
from weft_bench.systems import chosen_systems

TREE = Path(__file__).parent.parent.parent


def parsed(*arguments):
    (options,) = parse_arguments(list(arguments)).scenarios
    return options


# Backlogs


def shared_of(tmp_path, *arguments, repeat=1):
    options = parsed(*arguments)
    systems, _ = chosen_systems(options, {})
    return shared_backlogs(options, systems, repeat, tmp_path, None)


def test_who_shares_a_backlog(tmp_path):
    shared = shared_of(tmp_path, "drain", "--systems", ",".join(SYSTEMS))
    assert {system.name for system in shared.systems} == {
        "publisher", "physical", "native", "native-text", "native-parallel", "weft", "weft-stock",
        "native-timestamps", "weft-timestamps", "weft-exact", "weft-detect", "weft-strict",
        "weft-lz4",
    }  # fmt: skip
    assert shared.passes == ("first", "later")
    assert shared_of(tmp_path, "drain", "--systems", "weft-group,slony") is None
    assert shared_of(tmp_path, "sustained", "--systems", "native") is None
    assert shared_of(tmp_path, "io-drain", "--passes", "first").passes == ("first",)


class Publisher:
    """Notes the slots that are asked of it."""

    def __init__(self):
        self.slots = []

    def execute(self, _statement, parameters=()):
        self.slots.append(tuple(parameters))


def test_every_system_has_a_slot_of_its_own(tmp_path):
    shared = shared_of(
        tmp_path, "drain", "--writers", "1,4", "--systems", "native,weft,weft-stock,weft-strict"
    )
    publisher = Publisher()
    for system in shared.systems:
        system.reserve(publisher)
    names = [name for name, _ in publisher.slots]
    assert len(set(names)) == 7
    # A slot's name may not be longer than 63, and has no other characters.
    assert all(name.replace("_", "").isalnum() and len(name) < 64 for name in names)
    assert [system.slot for system in shared.systems] == names
    # Weft's own plugin is only used where the publisher has Weft when it sends.
    build = Build("server", "17.11", Path(), restricts_plugins=True)
    for system, (_, plugin) in zip(shared.systems, publisher.slots):
        loaded = "shared_preload_libraries" in system.publisher_settings(build)
        assert plugin == ("weft" if loaded else "pgoutput")


def test_every_pass_and_repeat_has_other_rows():
    seeds = {seed_of(repeat, pass_) for repeat in range(1, 21) for pass_ in ("first", "later")}
    assert len(seeds) == 40


def test_a_standby_is_used_once(tmp_path, monkeypatch):
    def copy_data(_server, copies, _what, _steps):
        for target_directory, source in copies.items():
            shutil.copytree(source, target_directory)

    monkeypatch.setattr(backlog, "copy_data", copy_data)
    shared = Shared(tmp_path, [], parsed("drain"), 1, ("first",), True, {}, None)
    standby = SimpleNamespace(data=tmp_path / "subscriber")
    shared.standby_data("first").mkdir()
    (shared.standby_data("first") / "new").touch()
    standby.data.mkdir()
    (standby.data / "old").touch()
    shared.take_standby("first", standby)
    assert [file.name for file in standby.data.iterdir()] == ["new"]
    with pytest.raises(BenchError):
        shared.take_standby("first", standby)


def test_nothing_is_left_of_systems_before(tmp_path):
    """What decoding has written down for one would save the next the work."""
    options = parsed("drain")
    pair = Pair(tmp_path, tmp_path, Build("server", "17.11", Path()), contents_of(options, False))
    snapshots = pair.publisher.data / "pg_logical" / "snapshots"
    snapshots.mkdir(parents=True)
    (pair.publisher.data / "pg_wal" / "archive_status").mkdir(parents=True)
    (pair.publisher.data / "pg_wal" / "1").write_bytes(b"x" * 100)
    (snapshots / "0-1234.snap").touch()
    shared = Shared(tmp_path, [], options, 1, ("first",), True, {}, None)
    shared.freshen(pair.publisher)
    assert not list(snapshots.iterdir())


def test_the_publisher_of_a_pass_is_at_the_place_of_the_pairs(tmp_path):
    options = parsed("drain")
    build = Build("server", "17.11", Path())
    pair = Pair(tmp_path / "run", tmp_path / "sockets", build, contents_of(options, False))
    shared = Shared(tmp_path / "backlogs", [], options, 1, ("first",), True, {}, None)
    server = shared.publisher(pair, "later")
    assert server.conninfo == pair.publisher.conninfo and server.name == "publisher"
    assert server.data == tmp_path / "backlogs" / "later"
    pair.publisher = server
    assert pair.servers[0] is pair.all_servers[0] is server


def test_standbys_need_more_disk():
    def needed(systems):
        options = parsed("drain", "--systems", systems)
        return SCENARIOS["drain"].disk_needed(options, contents_of(options, keyed=False))

    assert needed("physical,native") > needed("native,weft") == needed("native") > 0


def test_the_rate_of_the_publisher():
    assert Backlog(100, 4, 0, 10, 1, "0/0").rate == 25


# Documents


def write_run(results, value=1000.0, *arguments):
    options = parsed(*(arguments or ("drain", "--systems", "native,weft", "--repeats", "5")))
    found = Results(str(results / "drain.json"))
    found.about = {
        "machine": {"date": "2026-11-23 06:38 UTC", "cpu": "A processor", "cores": 2,
                    "memory_gb": 23.5, "filesystem": "ext4", "server": "17.11"},
        "provenance": {"commit": "0123abcdef", "dirty": True},
        "settings": {options.scenario: {"options": asdict(options)}},
    }  # fmt: skip
    found.add([
        Figure("drain", system, "17.11", 8, writers, "first", 1, metric, "", rate)
        for system, writers, rate in (("native", None, value), ("weft", 4, 3 * value))
        for metric in ("drain_tps", "publisher_wal_per_txn")
    ])  # fmt: skip


DOCUMENT = "before\n\n<!-- figures drain.json -->\nold\n<!-- end of figures -->\n\nafter\n"


def test_tables_of_documents_are_renewed(tmp_path):
    write_run(tmp_path)
    (tmp_path / "docs").mkdir()
    document = tmp_path / "docs" / "benchmarks.md"
    text = renewed(DOCUMENT, document, tmp_path)
    assert text.startswith("before\n\n<!-- figures drain.json -->\n`bench/run drain --systems")
    assert text.endswith("\n<!-- end of figures -->\n\nafter\n")
    assert "--systems native,weft --repeats 5`: 2026-11-23, A processor, 2 cores" in text
    assert "PostgreSQL 17.11 ([figures](../drain.json))." in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0].startswith("| system | server | runs | median | min | max | /native | others |")
    assert rows[1].startswith("| --- | --- | ---: |")
    assert rows[3].startswith("| weft (4) | 17.11 | 1 | 3,000 | 3,000 | 3,000 | 3.00 |")
    assert "| system | WAL there | WAL here |" not in text and "| system | WAL there |" in text
    brief = renewed(DOCUMENT.replace("figures d", "figures without costs d"), document, tmp_path)
    assert "| /native | others |" in brief and "WAL there" not in brief
    # Again, nothing changes; with other figures, it does.
    document.write_text(text)
    assert not outdated(document, tmp_path)
    write_run(tmp_path, 2000.0)
    assert outdated(document, tmp_path)


def test_figures_of_a_document_must_exist(tmp_path):
    with pytest.raises(BenchError):
        renewed(DOCUMENT, tmp_path / "x.md", tmp_path)
    write_run(tmp_path)
    with pytest.raises(BenchError):
        renewed(DOCUMENT.replace("end of figures", "end"), tmp_path / "x.md", tmp_path)
    twice = DOCUMENT.replace("old", "<!-- figures drain.json -->")
    with pytest.raises(BenchError):
        renewed(twice, tmp_path / "x.md", tmp_path)


@pytest.mark.parametrize(
    "call",
    ["drain --systems native,weft --transactions 7 --writers 1,4 --repeats 5",
     "drain --systems native --load tpcc", "drain --systems native --load uuid --passes first",
     "large --systems weft --kind delete --cpus 0/1",
     "lag --systems native,weft --seconds 60 --steps 10%,20% --rtt 20ms --rate 100mbit"],
)  # fmt: skip
def test_calls_are_told_from_their_options(call):
    options = parsed(*call.split())
    told = command_of(options.scenario, json.loads(json.dumps(asdict(options))))
    assert told.startswith("bench/run ")
    assert parsed(*told.split()[1:]) == options


@pytest.mark.parametrize(
    "document",
    [file for file in (*TREE.glob("*.md"), *TREE.glob("docs/*.md"))
     if BEGIN.search(file.read_text())],
    ids=lambda file: file.name,
)  # fmt: skip
def test_documents_show_what_their_files_say(document):
    assert not outdated(document), f"renew it: bench/tables {document.relative_to(TREE)}"
