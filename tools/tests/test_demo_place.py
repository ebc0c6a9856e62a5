"""Without make, as the package weft-cli installs them, the demos name what its user can type."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import demo_place
import pytest

TOOLS = Path(__file__).resolve().parents[1]
PRINT = (
    "import sys, {0} as d; from pathlib import Path; print(d.to_try(Path('x')), d.to_type_next())"
)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The files of debian/weft-cli.install, where no Makefile is near."""
    folder = tmp_path / "share" / "demo"
    folder.mkdir(parents=True)
    for file in TOOLS.glob("demo*.py"):
        shutil.copy(file, folder)
    return folder


def text(folder: Path, module: str) -> str:
    return subprocess.check_output(
        [sys.executable, "-c", PRINT.format(module)], cwd=folder, text=True
    )


@pytest.mark.parametrize("module", ["demo", "demo_group"])
def test_the_package_does_not_talk_of_make(package: Path, module: str) -> None:
    said = text(package, module)
    assert "make" not in said.split()
    assert f"python3 {package}/demo.py" in said
    assert f"KEEP=1 python3 {package}/{module}.py" in said
    assert "/usr/share/doc/weft-cli/docs/" in said


@pytest.mark.parametrize(("module", "goal"), [("demo", "demo"), ("demo_group", "demo-group")])
def test_the_source_does(module: str, goal: str) -> None:
    said = text(TOOLS, module)
    assert f"KEEP=1 make {goal}" in said
    assert "/usr/share" not in said


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with three servers, two of which have Weft, and none in the PATH."""
    for major in ("16", "17", "18"):
        (tmp_path / major / "bin").mkdir(parents=True)
        (tmp_path / major / "lib").mkdir()
        if major != "16":
            (tmp_path / major / "lib" / "weft.so").touch()
    monkeypatch.setattr(demo_place, "SERVERS", tmp_path)
    monkeypatch.setattr(demo_place, "FROM_SOURCE", False)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("PG", raising=False)
    monkeypatch.delenv("PG_MAJOR", raising=False)
    return tmp_path


def chosen() -> str:
    demo_place.choose_server()
    return os.environ["PATH"].split(":")[0]


def test_the_newest_server_is_chosen_or_that_of_pg(
    servers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen() == f"{servers}/18/bin"
    assert demo_place.other_major() == "17"
    monkeypatch.setenv("PG", "17")
    assert chosen() == f"{servers}/17/bin"
    assert demo_place.other_major() == "18"


def test_a_server_in_the_path_is_used(servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = servers / "own" / "initdb"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert chosen() == str(program.parent)


def test_what_cannot_work_is_said(servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG", "16")
    with pytest.raises(demo_place.NoServerError, match="postgresql-16-weft"):
        demo_place.choose_server()
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with pytest.raises(demo_place.NoServerError, match="root"):
        demo_place.choose_server()
