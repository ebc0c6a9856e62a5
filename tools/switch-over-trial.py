#!/usr/bin/env python
"""Switches over and back under load, and reports how long writes paused.

    PG=18 tools/setup.sh release python tools/switch-over-trial.py --old 15 --scale 50

The new server is the one that setup.sh has chosen.  The old one, a stock server, is the
machine's (15), one that tools/get-server.sh builds (17, 18), or in any directory with
programs.  Sixteen clients with a ledger write all the time, most of what they do is pgbench's
transaction, and everything that test/ledger checks is checked.  fsync is on, unless --faults.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "test" / "ledger"))

from servers import own_programs, programs_of
from switching import Hold, Progress, chosen_faults, one_fault, subscribe, switch
from trial import pair, prepare, trial_on


def programs(which: str, flavour: str) -> Path:
    if "/" in which:
        return Path(which)
    if found := programs_of(int(which)):
        return found
    command = [str(Path(__file__).parent / "get-server.sh"), which, flavour]
    return Path(subprocess.check_output(command, text=True).strip()).parent


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--old", help="major version or directory; default: like the new one")
    parser.add_argument("--flavour", default="release", help="which build to take: assert, release")
    parser.add_argument("--scale", type=int, default=1, help="pgbench's; 0: without its tables")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--think-time", type=float, default=0.0, help="mean, in s")
    parser.add_argument("--repeats", type=int, default=1, help="times over and back")
    parser.add_argument("--load", type=int, default=3000, help="transactions between moves")
    parser.add_argument("--options", default="", help="more arguments: \", verify => 'full'\"")
    parser.add_argument("--faults", type=int, default=0, help="that many faults afterwards")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    old = programs(arguments.old, arguments.flavour) if arguments.old else own_programs()
    settings = "fsync = off" if arguments.faults else "synchronous_commit = on"
    found: list[str] = []
    with pair(old, settings=settings + "\nshared_buffers = 1GB") as servers:
        print(f"{servers[0].major} -> {servers[1].major}, scale {arguments.scale}", flush=True)
        prepare(servers, arguments.scale)
        subscribe(servers)
        with trial_on(servers, arguments.scale, arguments.clients, arguments.think_time) as trial:
            trial.initially_open = True
            for side in (0, 1):
                trial.start_probe(side)
            for back in [False, True] * arguments.repeats:
                trial.wait_for_writes(arguments.load, side=trial.writing)
                progress = Progress(servers[1])
                switch(trial, back, arguments.options)
                trial.wait_for_writes(arguments.load, side=trial.writing)
                found += trial.findings()
                print(
                    f"{'back' if back else 'over'}: writes paused {trial.pauses()[-1]:.3f} s",
                    *found,
                    sep="\n    ",
                    flush=True,
                )
                print(progress.described(), flush=True)
                if found:
                    break
            pauses = trial.pauses()
            if arguments.faults:
                Hold.install(servers[1])
            if arguments.faults and not found:
                for fault in chosen_faults(str(arguments.faults)):
                    one_fault(trial, fault)
            if arguments.faults and not found:
                found += trial.findings()
            outcomes = dict(trial.clients.outcomes())
    print("outcomes:", outcomes, "worst pause:", f"{max(pauses):.3f} s")
    print("\n".join(found) or "nothing lost, nothing doubled, both sides equal")
    if arguments.json:
        figures = {"pauses": pauses, "outcomes": outcomes, "found": found}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
