"""weft doctor: each check on a pair of servers that is broken so that it finds something."""

import pytest

from doctor_scenarios import SCENARIOS
from doctor_site import Scenario, Site, expect, repaired, repaired_by_hand, repaired_by_restart
from weft_cli.doctor.registry import CHECKS
from weft_cli.exit_code import ExitCode

pytest_plugins = ["doctor_fixtures"]


def test_healthy(site: Site) -> None:
    outcome = site.doctor()
    assert outcome.document["findings"] == []
    assert outcome.document["not_checked"] == []
    assert outcome.code == ExitCode.FINE
    assert set(outcome.document["ok"]) == set(CHECKS)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: f"{each.id}-{each.name}")
def test_check(site: Site, scenario: Scenario) -> None:
    with scenario.broken(site):
        outcome = site.doctor()
        expect(outcome, scenario.id, scenario.consequences)
        is_info = {finding["severity"] for finding in outcome.document["findings"]} == {"info"}
        assert outcome.code == (ExitCode.FINE if is_info else ExitCode.FINDINGS)
        restart = any(finding["restart"] for finding in outcome.findings(scenario.id))
        if restart:
            repaired_by_restart(site, scenario.id)
        elif scenario.fixed:
            repaired(site)
        else:
            repaired_by_hand(site, outcome, scenario.id)
