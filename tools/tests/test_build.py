"""Objects of one server never get into the library of another."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
OBJECT = "src/ring/wait.o"
# In "make check", the server under test has no headers, but the one that it is a copy of does.
PG_CONFIG = os.environ.get("PG_HEADERS") or shutil.which("pg_config")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    shutil.copytree(TREE, folder, ignore=shutil.ignore_patterns(".git", "*.o", "*.so", "*.d"))
    (folder / "weft.server").unlink(missing_ok=True)
    return folder


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ("make", "-s", f"PG_CONFIG={PG_CONFIG}", *arguments),
        cwd=folder,
        text=True,
        capture_output=True,
    )


def built(folder: Path, *arguments: str) -> int:
    """When the object was built."""
    done = make(folder, OBJECT, *arguments)
    assert done.returncode == 0, done.stderr
    return (folder / OBJECT).stat().st_mtime_ns


def pg_config_of_another_version(folder: Path) -> str:
    program = folder / "pg_config"
    program.write_text(
        f"""#!/bin/sh
case $1 in
--version) echo "PostgreSQL 18.99" ;;
*) exec {PG_CONFIG} "$@" ;;
esac
"""
    )
    program.chmod(0o755)
    return str(program)


def test_another_server_compiles_all_again(tree: Path, tmp_path: Path) -> None:
    first = built(tree)
    assert built(tree) == first
    other = pg_config_of_another_version(tmp_path)
    second = built(tree, f"PG_CONFIG={other}")
    assert second != first
    assert built(tree, f"PG_CONFIG={other}") == second
    assert built(tree) != second


def test_another_version_of_weft_compiles_all_again(tree: Path) -> None:
    first = built(tree)
    control = tree / "weft.control"
    control.write_text(control.read_text() + "\n")
    assert built(tree) != first


def test_a_build_elsewhere_does_not_take_objects_from_the_tree(tree: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    arguments = ("-f", f"{tree}/Makefile", f"VPATH={tree}")
    built(elsewhere, *arguments)
    assert not (tree / OBJECT).exists()
    built(tree)
    done = make(elsewhere, OBJECT, *arguments)
    assert done.returncode != 0
    assert 'Before you build it elsewhere, run "make clean" there' in done.stderr
    assert make(elsewhere, "clean", *arguments).returncode == 0
    assert make(tree, "clean").returncode == 0
    built(elsewhere, *arguments)
