"""From what the figures come: the commit, how it was built, and all settings that were in force."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .build import Build
from .commit import parse_commit
from .errors import BenchError, run
from .server import Server

# Settings that only say where a server is.
PLACES = {
    "config_file", "data_directory", "hba_file", "ident_file", "listen_addresses",
    "unix_socket_directories", "cluster_name", "external_pid_file", "primary_conninfo",
}  # fmt: skip
IN_FORCE = """
    SELECT name, current_setting(name) FROM pg_settings
    WHERE name LIKE 'weft.%' OR source NOT IN ('default', 'client', 'session')
    ORDER BY name
"""


def build_flags(build: Build) -> dict[str, str]:
    """How the server was configured and compiled; Weft is compiled with the same flags."""
    said = run(build.program("pg_config"), environment=build.environment)
    wanted = {"CONFIGURE": "configure", "CC": "compiler", "CFLAGS": "cflags"}
    found = {}
    for line in said.splitlines():
        name, _, value = line.partition(" = ")
        if name in wanted:
            # Where it is installed is nobody's business.
            found[wanted[name]] = re.sub(r"'--prefix=[^']*' ?", "", value).strip()
    return found


def library_digest(build: Build) -> str | None:
    """Of the library that was measured: the same commit may have been built differently."""
    directory = run(
        build.program("pg_config"), "--pkglibdir", environment=build.environment
    ).strip()
    library = Path(directory) / "weft.so"
    return hashlib.sha256(library.read_bytes()).hexdigest()[:16] if library.exists() else None


def compiler_version() -> str:
    try:
        said = subprocess.run(("cc", "--version"), capture_output=True, text=True).stdout
    except OSError:
        return "unknown"
    return said.splitlines()[0] if said else "unknown"


def describe_provenance(build: Build, commit: str | None) -> dict[str, object]:
    flags: dict[str, str] = {}
    try:
        flags = build_flags(build)
    except (BenchError, OSError):
        flags = {"unknown": "there is no pg_config"}
    return {
        **parse_commit(commit),
        "library": library_digest(build) if "unknown" not in flags else None,
        "compiler_here": compiler_version(),
        "build": flags,
    }


def settings_in_force(server: Server) -> dict[str, str]:
    """All that differ from the defaults, and all of Weft's, as the server has them."""
    return {name: value for name, value in server.execute(IN_FORCE) if name not in PLACES}


def check_settings(server: Server, asked: Mapping[str, object]) -> None:
    """A server forgets settings with Weft's prefix that it does not know: then it would not be
    the system that it is said to be."""
    known = {name for (name,) in server.execute("SELECT name FROM pg_settings")}
    unknown = sorted(name for name in asked if "." in name and name not in known)
    if unknown:
        raise BenchError(f"the {server.name} does not know {', '.join(unknown)}")
