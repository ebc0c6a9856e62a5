"""META.json is valid and agrees with the source, and "make dist" packs what a build needs."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pgxn_meta import problems

TREE = Path(__file__).resolve().parents[2]
META = json.loads((TREE / "META.json").read_text())
VERSION = META["version"]


def test_the_metadata_is_valid() -> None:
    assert problems(META) == []


def without(*path: str) -> Callable[[Any], None]:
    def remove(meta: Any) -> None:
        for key in path[:-1]:
            meta = meta[key]
        del meta[path[-1]]

    return remove


def change(value: Any, *path: str) -> Callable[[Any], None]:
    def put(meta: Any) -> None:
        for key in path[:-1]:
            meta = meta[key]
        meta[path[-1]] = value

    return put


@pytest.mark.parametrize(
    "damage",
    [
        *(without(key) for key in ("name", "version", "abstract", "maintainer", "license")),
        without("provides"),
        without("meta-spec", "version"),
        without("provides", "weft", "file"),
        change("0.2", "version"),
        change("we ft", "name"),
        change("", "abstract"),
        change([], "maintainer"),
        change("postgres", "license"),
        change("beta", "release_status"),
        change("/etc/passwd", "provides", "weft", "file"),
        change(">= 17", "prereqs", "runtime", "requires", "PostgreSQL"),
        change("=> 17.0.0", "prereqs", "runtime", "requires", "PostgreSQL"),
        change(17, "prereqs", "runtime", "requires", "PostgreSQL"),
        change({"PostgreSQL": "17.0.0"}, "prereqs", "runtime", "needs"),
        change({"requires": {"dblink": 0}}, "prereqs", "production"),
        change("a.example", "resources", "homepage"),
        change("a.example", "resources", "bugtracker", "mailto"),
        change("Git", "resources", "repository", "type"),
        change("slash/slash", "tags"),
        change(["slash/slash"], "tags"),
        change(["x" * 256], "tags"),
        change("unknown", "other"),
    ],
)
def test_damage_is_found(damage: Callable[[Any], None]) -> None:
    meta = json.loads(json.dumps(META))
    damage(meta)
    assert len(problems(meta)) == 1, problems(meta)


def found(pattern: str, file: str) -> str:
    match = re.search(pattern, (TREE / file).read_text(), re.MULTILINE)
    assert match, f"no {pattern} in {file}"
    return match[1]


@pytest.mark.parametrize(
    ("pattern", "file"),
    [
        (r"^default_version = '(.*)'", "weft.control"),
        (r'^__version__ = "(.*)"', "cli/weft_cli/__init__.py"),
        (r"^## ([\d.]+)", "CHANGELOG.md"),
        (r"^weft \((.*)-\d+\)", "debian/changelog"),
    ],
)
def test_the_version_is_the_same_everywhere(pattern: str, file: str) -> None:
    assert found(pattern, file) == VERSION
    assert META["provides"]["weft"]["version"] == VERSION


# Scripts of released versions never change: databases have what they created.
RELEASED = {
    "weft--0.1.0.sql": "cfead64f607a3f35e825b7d0c2b40176bd6ee83172d228ae17f94bd4cead4472",
}


def test_released_scripts_are_frozen() -> None:
    scripts = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (TREE / "sql/released").iterdir()
    }
    assert scripts == RELEASED


def test_the_license_of_the_command_is_that_of_weft() -> None:
    assert (TREE / "cli/LICENSE").read_text() == (TREE / "LICENSE").read_text()


def test_the_servers_are_those_that_the_source_accepts() -> None:
    oldest = int(found(r"PG_VERSION_NUM < (\d+)", "src/compat.h")) // 10000
    refused = int(found(r"PG_VERSION_NUM >= (\d+)", "src/compat.h")) // 10000
    range_ = META["prereqs"]["runtime"]["requires"]["PostgreSQL"]
    assert range_ == f">= {oldest}.0.0, < {refused}.0.0"
    packaged = re.findall(r"^\d+$", (TREE / "debian/pgversions").read_text(), re.MULTILINE)
    assert packaged == [str(major) for major in range(oldest, refused)]


def run(*command: str, folder: Path) -> str:
    return subprocess.check_output(command, cwd=folder, text=True, env=os.environ | {"HOME": "/"})


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree as a commit of its own: the tests run in a copy without git's files."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    folder = tmp_path_factory.mktemp("dist") / "clone"
    shutil.copytree(TREE, folder, ignore=shutil.ignore_patterns(".git", "*.o", "*.so", "tmp_check"))
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@weft.example")
    run(*git, "init", "-q", folder=folder)
    run(*git, "add", "-A", folder=folder)
    run(*git, "commit", "-q", "-m", "test", folder=folder)
    return folder


def make_dist(clone: Path, name: str) -> list[Path]:
    output = run("make", "-s", "dist", f"DIST={clone.parent / name}", folder=clone)
    return [Path(line) for line in output.split()]


@pytest.fixture(scope="module")
def archives(clone: Path) -> list[Path]:
    return make_dist(clone, "first")


def members(archive: Path) -> dict[str, bytes]:
    """The files of an archive, all of which are in one folder."""
    files: dict[str, bytes] = {}
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zip_file:
            files = {name: zip_file.read(name) for name in zip_file.namelist() if name[-1] != "/"}
    else:
        with tarfile.open(archive) as tar:
            for member in tar:
                if (file := tar.extractfile(member)) is not None:
                    files[member.name] = file.read()
    prefix = f"weft-{VERSION}/"
    assert all(name.startswith(prefix) for name in files)
    return {name.removeprefix(prefix): content for name, content in files.items()}


def test_one_commit_gives_the_same_bytes(
    clone: Path, archives: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    old = os.umask(0o077)
    try:
        again = make_dist(clone, "second")
    finally:
        os.umask(old)
    assert [path.name for path in again] == [f"weft-{VERSION}.tar.gz", f"weft-{VERSION}.zip"]
    for first, second in zip(archives, again, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_archives_have_the_source_and_nothing_else(clone: Path, archives: list[Path]) -> None:
    tracked = set(run("git", "ls-files", folder=clone).splitlines())
    assert {"Makefile", "META.json", "LICENSE", "README.md", "weft.control"} <= tracked
    for archive in archives:
        files = members(archive)
        assert set(files) == tracked
        assert files["META.json"] == (TREE / "META.json").read_bytes()
        for provided in META["provides"].values():
            assert files[provided["file"]] and files[provided["docfile"]]


def installed_files(tree: Path, folder: Path) -> set[str]:
    """What make would install, by its own plan: package-trial.sh compiles, this does not."""
    command = ("make", "-n", "-f", f"{tree}/Makefile", "install")
    plan = run(*command, f"PG_CONFIG={os.environ['PG_CONFIG']}", folder=folder)
    files: set[str] = set()
    for line in plan.splitlines():
        if match := re.match(r"\S*install\S* .*?-m \d+ +(.*) '[^']*'$", line):
            files |= set(match[1].split())
    return files


@pytest.mark.parametrize("place", ["within", "without"])
def test_a_build_from_an_archive_installs_all_files(
    archives: list[Path], tmp_path: Path, place: str
) -> None:
    shutil.unpack_archive(archives[0], tmp_path)
    tree = tmp_path / f"weft-{VERSION}"
    folder = tree if place == "within" else tmp_path / "build"
    folder.mkdir(exist_ok=True)
    files = installed_files(tree, folder)
    built = {"weft.so", f"sql/weft--{VERSION}.sql", f"sql/weft--0.1.0--{VERSION}.sql"}
    assert built <= files
    source = {folder / name for name in files - built}
    assert all(path.is_file() for path in source), source
    assert {path.name for path in source} == {"weft.control", "weft--0.1.0.sql"}
