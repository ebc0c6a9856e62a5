"""What the servers are made of: the server under test with what is installed into it, and
Debian's PostgreSQL 15 for the systems that know nothing newer."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

from .errors import BenchError, run

PACKAGES = Path(__file__).parent.parent / "packages"


class UnavailableError(Exception):
    """A system is not available on this machine; the text gives the reason."""


@dataclass(frozen=True)
class Build:
    name: str
    version: str
    bin: Path
    environment: dict[str, str] = field(default_factory=dict)
    restricts_plugins: bool = False
    # Programs that are not part of the server.
    tools: Path | None = None

    def tool(self, name: str) -> str:
        assert self.tools is not None
        return str(self.tools / name)

    def program(self, name: str) -> str:
        return str(self.bin / name)

    def with_plugin(self, name: str) -> dict[str, object]:
        """The publisher's setting that allows an output plugin, if the server has one."""
        if not self.restricts_plugins:
            return {}
        return {"output_plugin_libraries": f"pgoutput, test_decoding, {name}"}


def describe_build(name: str, directory: Path, environment: dict[str, str]) -> Build:
    version = run(str(directory / "postgres"), "--version", environment=environment).split()[2]
    parameters = run(str(directory / "postgres"), "--describe-config", environment=environment)
    restricts = any(line.startswith("output_plugin_libraries\t") for line in parameters.split("\n"))
    return Build(name, version, directory, environment, restricts)


def fetch(script: str, *arguments: str) -> Path:
    """Runs one of the scripts in bench/packages.  If it fails, its output is the reason."""
    if "WEFT_CACHE" not in os.environ:
        raise UnavailableError("start the benchmark with bench/run, which locates the cache")
    process = subprocess.Popen(
        (str(PACKAGES / script), *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True, text=True,
    )  # fmt: skip
    try:
        output, said = process.communicate()
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
    if process.returncode != 0:
        raise UnavailableError(said.strip()[-2000:] or f"{script} failed")
    return Path(output.strip())


def server_build() -> Build:
    """The server that setup.sh has prepared, found in the PATH: a private copy of another."""
    return describe_build("server", Path(shutil.which("postgres") or "postgres").parent, {})


def install_pglogical(build: Build) -> str:
    """Builds pglogical for the server that this one is a copy of, and adds it to the copy."""
    # The copy lies at its original's absolute path below this directory.
    copies = Path.cwd().parent / "server"
    try:
        original = Path("/") / build.bin.resolve().relative_to(copies.resolve())
    except ValueError:
        raise UnavailableError(f"{build.bin} is not in a copy made by setup.sh") from None
    files = fetch("pglogical.sh", str(original / "pg_config"))
    shutil.copytree(files, copies, dirs_exist_ok=True)
    return (files / ".version").read_text().strip()


def debian_build() -> Build:
    root = fetch("debian-15.sh")
    libraries = [str(path) for path in root.glob("usr/lib/*-linux-gnu*")]
    environment = {
        "LD_LIBRARY_PATH": ":".join(libraries),
        "PYTHONPATH": str(root / "usr/lib/python3/dist-packages"),
        "SLONY_SHARE_DIR": str(root / "usr/share/slony1"),
        "PATH": f"{root / 'usr/bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}",
    }
    try:
        build = describe_build("debian-15", root / "usr/lib/postgresql/15/bin", environment)
    except (BenchError, OSError) as error:
        raise UnavailableError(str(error)) from None
    return replace(build, tools=root / "usr/bin")
