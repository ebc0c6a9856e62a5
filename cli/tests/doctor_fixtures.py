"""Fixtures of the doctor's tests; a module names this one in pytest_plugins."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from doctor_site import Captured, Site
from servers import Server, created, own_programs


@pytest.fixture(scope="session")
def servers(directory: Path) -> Iterator[list[Server]]:
    """A pair, and a spare server for what concerns servers without a subscription."""
    programs = own_programs()
    described = subprocess.check_output([programs / "postgres", "--describe-config"], text=True)
    settings = "track_commit_timestamp = on\n"
    if "\noutput_plugin_libraries\t" in described:
        settings += "output_plugin_libraries = 'pgoutput, test_decoding, weft'\n"
    made = [
        Server(directory / name, programs, settings, weft=True) for name in ("dp", "ds", "spare")
    ]
    with created(*made):
        yield made


@pytest.fixture(scope="session")
def created_site(servers: list[Server]) -> Site:
    site = Site(servers[0], servers[1], lambda: "")
    site.create()
    return site


@pytest.fixture
def captured(capsys: pytest.CaptureFixture[str]) -> Captured:
    return lambda: capsys.readouterr().out


@pytest.fixture
def site(created_site: Site, captured: Captured) -> Iterator[Site]:
    """Healthy before and after each test."""
    created_site.captured = captured
    created_site.pub.database = created_site.sub.database = "doctor"
    yield created_site
    created_site.pub.database = created_site.sub.database = "doctor"
    created_site.wait_until_healthy()
