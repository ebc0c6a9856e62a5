"""Writes docs/doctor.md, the reference of all checks.

usage: python -m weft_cli.doctor.page >docs/doctor.md
"""

import textwrap

from weft_cli.doctor.registry import Check, Group, in_order
from weft_cli.doctor.run import MODULES

INTRODUCTION = """\
# The checks of weft doctor

<!-- Generated from the texts in cli/weft_cli/doctor/: python -m weft_cli.doctor.page -->
<!-- page not run: cli/tests/test_doctor.py runs each check, and each fix -->

`weft doctor`, connected to the subscriber, makes these checks for each subscription of the
database, on both servers. It connects to the publisher as the subscription does, or as
`--publisher` says. Without a subscription, `--publisher` checks whether one can be created.

```sh
weft doctor -h new.example -d shop           # what is wrong, and the SQL that fixes it
weft doctor -h new.example -d shop --fix     # runs that SQL; asks before each change, and verifies
weft doctor --explain W040                   # this page, for one check
```

Each finding has a severity: an `error` stops replication, or loses something; a `warning` will do
so under some condition, or costs speed; an `info` is worth knowing. The exit status is 1 if there
is an error or a warning, or if something could not be checked; a check that cannot be made is never
reported as OK. `--ignore W081,W064` leaves out what you know, `--only W010` makes only one check.
`-o json` is for programs.

The ids are stable. Checks need the rights to read what they look at: on the subscriber, only a
superuser can read how a subscription connects (otherwise use `--publisher`); `pg_monitor` on both
servers shows settings and sessions. `--fix` runs statements with the rights of the role that you
connect as, and on the publisher with those of the subscription's role.
"""


def wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 98, break_long_words=False, break_on_hyphens=False))


def entry(check: Check) -> str:
    return (
        f"### {check.id}: {check.title}\n\n"
        f"*{check.severity}, {check.side}*\n\n"
        f"{wrapped(check.why)}\n\n"
        f"{wrapped(f'**Remedy:** {check.remedy}')}\n"
    )


def page() -> str:
    assert MODULES, "the modules have registered their checks"
    parts = [INTRODUCTION]
    for group in Group:
        checks = [check for check in in_order() if check.group is group]
        parts.append(f"## {group.value}\n")
        parts += [entry(check) for check in checks]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
