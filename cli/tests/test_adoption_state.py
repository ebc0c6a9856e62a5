"""The table of states and steps in adoption.py, and the names of slots."""

import shlex
from dataclasses import replace

import pytest

from weft_cli.adoption_state import (
    PGOUTPUT,
    WEFT,
    Slot,
    State,
    Step,
    find_pair,
    lsn,
    next_step,
    remaining_steps,
)
from weft_cli.errors import Refused

STATE = State(
    subid=16400,
    subscription="-it's",
    enabled=True,
    slot_name="old",
    failover=False,
    two_phase=False,
    unready_tables=0,
    system_identifier=7711370663646531554,
    plugin_in_use=WEFT,
    native_reason=None,
    slots={},
)
NEW = STATE.new_name("old", WEFT)


def slot(name: str, plugin: str, active: bool = False, failover: bool = False) -> Slot:
    return Slot(
        name=name,
        plugin=plugin,
        here=True,
        active=active,
        temporary=False,
        failover=failover,
        confirmed=100,
        lost=None,
    )


def state(enabled: bool, current: str, *slots: Slot, failover: bool = False) -> State:
    return replace(
        STATE,
        enabled=enabled,
        slot_name=current,
        failover=failover,
        slots={each.name: each for each in slots},
    )


OLD = slot("old", PGOUTPUT)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (state(True, "old", OLD, slot(NEW, WEFT)), Step.CLEAN),
        (state(True, "old", OLD), Step.STOP),
        (state(False, NEW, slot("old", PGOUTPUT, active=True)), Step.WAIT),
        (state(False, NEW, OLD), Step.COPY),
        (state(False, NEW, OLD, slot(NEW, WEFT), failover=True), Step.FAILOVER),
        (state(False, NEW, OLD, slot(NEW, WEFT, failover=True), failover=True), Step.START),
        (state(False, NEW, OLD, slot(NEW, WEFT)), Step.START),
        (state(True, NEW, OLD, slot(NEW, WEFT)), Step.SETTLE),
        (state(True, NEW, OLD, slot(NEW, WEFT, active=True)), Step.DROP),
        (state(True, NEW, OLD, slot(NEW, WEFT, active=True), failover=True), Step.STANDBY),
        (state(True, NEW, slot(NEW, WEFT, active=True)), None),
        (state(True, NEW, OLD), Step.STOP),
    ],
)
def test_next_step(found: State, expected: Step | None) -> None:
    assert next_step(found, WEFT, standbys_have_it=False) is expected


def test_subscriber_must_use_the_plugin_before_the_old_slot_goes() -> None:
    found = state(True, NEW, OLD, slot(NEW, WEFT, active=True))
    assert next_step(replace(found, plugin_in_use=PGOUTPUT), WEFT, False) is Step.SETTLE
    native = replace(found, plugin_in_use=None, native_reason="no writers")
    assert next_step(native, WEFT, False) is Step.DROP


def test_remaining_steps() -> None:
    assert remaining_steps(state(True, NEW, OLD, slot(NEW, WEFT)), WEFT) == [
        Step.SETTLE,
        Step.DROP,
    ]
    assert Step.FAILOVER in remaining_steps(state(True, "old", OLD, failover=True), WEFT)
    assert remaining_steps(state(True, NEW, slot(NEW, WEFT)), WEFT) == []


def test_slots_of_others_are_not_taken_for_the_old_one() -> None:
    """Somebody calls two subscriptions "app" and "app_weft"."""
    found = state(True, "app_weft", slot("app", PGOUTPUT), slot("app_weft", WEFT, active=True))
    assert next_step(found, WEFT, False) is None
    another = replace(STATE, subid=STATE.subid + 1)
    assert another.new_name("old", WEFT) != NEW
    clone = replace(STATE, system_identifier=1)
    assert clone.new_name("old", WEFT) != NEW


def test_names_fit() -> None:
    long = "x" * 63
    name = STATE.new_name(long, PGOUTPUT)
    assert len(name) == 63
    assert name != STATE.new_name("x" * 62, PGOUTPUT)
    # a suffix does not pile up
    assert len(STATE.new_name(NEW, PGOUTPUT)) == len("old_pgoutput_") + 8


def test_unfinished_in_the_other_direction() -> None:
    with pytest.raises(Refused, match="is being moved to plugin weft") as refused:
        find_pair(state(True, NEW, OLD, slot(NEW, WEFT, active=True)), PGOUTPUT)
    command = refused.value.hint.removeprefix("Finish that first: ")
    assert shlex.split(command) == ["weft", "adopt", "--plugin", "weft", "--", "-it's"]


def test_unknown_slot() -> None:
    with pytest.raises(Refused, match='no slot "old"'):
        find_pair(state(True, "old"), WEFT)


def test_positions_are_compared_as_numbers() -> None:
    assert lsn("0/FFFFFFFF") < lsn("1/0") < lsn("10/0")
    assert lsn(None) == 0
