"""Each way in which a command cannot begin: its message, and its exit status."""

from conftest import Pair, Weft
from weft_cli.exit_code import ExitCode


def test_fine(pair: Pair, weft: Weft) -> None:
    done = weft("status", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE, done.stderr
    assert done.stderr == ""
