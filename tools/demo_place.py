"""Where a demo runs from: Weft's source, started by make, or the package weft-cli, by its user.

The package knows no make, and its user no server in the PATH: on Debian, programs such as initdb
are in a directory of their major version.
"""

import os
import shutil
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FROM_SOURCE = (FOLDER.parent / "Makefile").exists()
DOCS = "docs" if FROM_SOURCE else "/usr/share/doc/weft-cli/docs"
SERVERS = Path("/usr/lib/postgresql")
PROGRAMS = {"demo": "demo.py", "demo-group": "demo_group.py"}


class NoServerError(Exception):
    """No server with Weft is installed, or the wrong user starts the demo."""


def command(goal: str, **settings: str) -> str:
    """What to type to run a demo."""
    words = [f"{name}={value}" for name, value in settings.items()]
    if FROM_SOURCE:
        words += ["make", goal]
    else:
        words += ["python3", str(FOLDER / PROGRAMS[goal])]
    return " ".join(words)


def commands(*lines: tuple[str, str]) -> str:
    """Lines with a command and what it does."""
    width = max(len(typed) for typed, _ in lines)
    return "\n".join(f"  {typed:<{width}}   {does}" for typed, does in lines)


def majors() -> list[str]:
    """The major versions whose servers have Weft, the newest first."""
    found = [library.parent.parent.name for library in SERVERS.glob("*/lib/weft.so")]
    return sorted(found, key=int, reverse=True)


def other_major() -> str | None:
    """Another major version with which the demo can be run."""
    if FROM_SOURCE:
        return "17" if os.environ.get("PG_MAJOR") == "18" else "18"
    return next((major for major in majors() if major != os.environ.get("PG_MAJOR")), None)


def choose_server() -> None:
    """Without make, finds the server: that of PG, that in the PATH, or the newest one."""
    if FROM_SOURCE:
        return
    if os.getuid() == 0:
        raise NoServerError("PostgreSQL does not run as root; start the demo as another user")
    wanted = os.environ.get("PG")
    if not wanted and shutil.which("initdb"):
        return
    candidates = [major for major in majors() if wanted in (None, "", major)]
    if not candidates:
        name = f"postgresql-{wanted}-weft" if wanted else "postgresql-17-weft or -18-weft"
        raise NoServerError(f"there is no server with Weft; install the package {name}")
    os.environ["PG_MAJOR"] = candidates[0]
    os.environ["PATH"] = f"{SERVERS / candidates[0] / 'bin'}:{os.environ['PATH']}"
