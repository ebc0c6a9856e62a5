"""weft.switch_over and weft.switch_back with clients that write all the time.

WEFT_LEDGER_FAULTS says which faults there are: how many; all (each one at each step, both
ways, which takes an hour: start pytest yourself) or "all 1/4", a part of them; or
"end of stop: kill the caller", as the test prints them, separated by commas.
WEFT_LEDGER_SEED repeats a choice, WEFT_LEDGER_SCALE adds pgbench's tables, and
WEFT_LEDGER_REPEATS says how often the test goes over and back.  WEFT_LEDGER_CLIENTS is how many
write while there are faults.
"""

import os

import pytest
from servers import own_programs, programs_of
from switching import Hold, chosen_faults, one_fault, subscribe, switch
from trial import pair, prepare, trial_on

SCALE = int(os.environ.get("WEFT_LEDGER_SCALE", "0"))
REPEATS = int(os.environ.get("WEFT_LEDGER_REPEATS", "1"))
FAULTS = os.environ.get("WEFT_LEDGER_FAULTS")
# Both sides are closed then, and the server that is asked about it is restarting.
ALWAYS = "end of stop: kill the caller"
CLIENTS = int(os.environ.get("WEFT_LEDGER_CLIENTS", "16"))
# What is asked of a pause, in seconds.  By default the figure is only printed, since the machine
# may be busy.
LONGEST_PAUSE = float(os.environ.get("WEFT_LEDGER_PAUSE", "inf"))

OLD = programs_of(15)


def skip_if_missing(server):
    if server.value("SELECT prosrc ~ 'not implemented' FROM pg_proc WHERE proname = 'switch_over'"):
        pytest.skip("weft.switch_over is not implemented yet")


@pytest.mark.parametrize(
    ("old", "settings"),
    [
        pytest.param(own_programs(), "fsync = off", id="same"),
        pytest.param(
            OLD,
            "fsync = off\ntrack_commit_timestamp = on",
            id="15",
            marks=pytest.mark.skipif(OLD is None, reason="there is no PostgreSQL 15"),
        ),
    ],
)
def test_over_and_back(old, settings):
    with pair(old, settings=settings) as servers:
        prepare(servers, SCALE)
        subscribe(servers)
        skip_if_missing(servers[1])
        with trial_on(servers, SCALE) as trial:
            trial.initially_open = True
            for side in (0, 1):
                trial.start_probe(side)
            trial.wait_for_writes(100, side=0)
            for back in [False, True] * REPEATS:
                switch(trial, back)
                trial.wait_for_writes(100, side=trial.writing)
                assert trial.findings() == []
            print("pauses:", trial.pauses(), dict(trial.clients.outcomes()))
            assert max(trial.pauses()) < LONGEST_PAUSE


def test_faults():
    faults = chosen_faults(FAULTS) if FAULTS else chosen_faults(ALWAYS) + chosen_faults("5")
    with pair() as servers:
        prepare(servers)
        subscribe(servers)
        skip_if_missing(servers[1])
        Hold.install(servers[1])
        with trial_on(servers, clients=CLIENTS, think_time=0.02) as trial:
            trial.initially_open = True
            for side in (0, 1):
                trial.start_probe(side)
            trial.wait_for_writes(50, side=0)
            # A subscriber is open before its first switch-over: clients whose server dies
            # would write there.
            switch(trial, back=False)
            trial.wait_for_writes(20, side=1)
            switch(trial, back=True)
            trial.wait_for_writes(20, side=0)
            for number, fault in enumerate(faults, 1):
                one_fault(trial, fault)
                if number % 10 == 0:
                    assert trial.findings() == []
            assert trial.findings() == []
            print("outcomes:", dict(trial.clients.outcomes()))
