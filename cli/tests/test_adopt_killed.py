"""weft adopt: nothing is lost, repeated or copied again, whatever is killed at any moment."""

import pytest

from adopting import (
    adopt_fully,
    catch_up,
    check_equal,
    contents,
    copies,
    interrupted,
    load,
    subscribe,
)
from conftest import Pair, Weft
from servers import Server
from weft_cli.exit_code import ExitCode

# More than an adoption has.
MOST_STATEMENTS = 20


@pytest.mark.parametrize("how", ["during", "after"])
def test_killed_at_every_statement(pair: Pair, weft: Weft, how: str) -> None:
    subscribe(pair)
    copied = copies(pair)
    plugin = "pgoutput"
    kills = 0
    with load(pair.publisher):
        for number in range(1, MOST_STATEMENTS):
            plugin = "weft" if plugin == "pgoutput" else "pgoutput"
            process = interrupted(pair, number, how, "adopt", "s", "--plugin", plugin, "--yes")
            output, _ = process.communicate(timeout=60)
            killed = process.returncode < 0
            assert killed or process.returncode == ExitCode.FINE, output
            kills += killed
            adopt_fully(pair, weft, plugin)
            if not killed:
                break
    # trial copy, its drop, stop, copy, start, drop
    assert kills == 6
    check_equal(pair, copied)


@pytest.mark.parametrize("victim", ["publisher", "subscriber"])
def test_server_killed_at_every_statement(pair: Pair, weft: Weft, victim: str) -> None:
    subscribe(pair)
    copied = copies(pair)[0]
    server: Server = getattr(pair, victim)
    plugin = "pgoutput"
    kills = 0
    with load(pair.publisher):
        for number in range(1, MOST_STATEMENTS):
            plugin = "weft" if plugin == "pgoutput" else "pgoutput"
            process = interrupted(pair, number, "pause", "adopt", "s", "--plugin", plugin, "--yes")
            assert process.stdout is not None
            line = process.stdout.readline()
            while line not in ("", "paused\n"):
                line = process.stdout.readline()
            if line:
                server.kill()
                server.start()
                kills += 1
            output, _ = process.communicate("\n", timeout=60)
            expected = (ExitCode.UNREACHABLE, ExitCode.REFUSED) if line else (ExitCode.FINE,)
            assert process.returncode in expected, output
            adopt_fully(pair, weft, plugin)
            if not line:
                break
    assert kills == 6
    catch_up(pair)
    assert contents(pair.subscriber) == contents(pair.publisher)
    assert copies(pair)[0] == copied
