"""What the tests share; what ends the tests ends their servers, too."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from situation import MONITORING, TREE, Situation, situation
from weft_monitoring.definitions import Source, read


def pytest_configure() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))


@pytest.fixture(scope="session")
def source() -> Source:
    return read(MONITORING / "metrics.toml")


@pytest.fixture(scope="session")
def arranged() -> Iterator[Situation]:
    with situation() as made:
        yield made


@pytest.fixture(scope="session")
def programs() -> Path:
    """Where Prometheus and the exporters are; skips the test if they cannot be fetched."""
    fetched = subprocess.run(
        [TREE / "tools/get-exporters.sh"], capture_output=True, text=True, env=os.environ
    )
    if fetched.returncode != 0:
        pytest.skip(f"no Prometheus and no exporters: {fetched.stderr.strip().splitlines()[-1]}")
    return Path(fetched.stdout.strip())
