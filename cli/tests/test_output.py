"""Numbers for people, numbers for programs, and no passwords in either."""

import io
import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from weft_cli.context import Context
from weft_cli.escape import SafeConsole
from weft_cli.options import Options
from weft_cli.output import duration, emit, number, plain_data, printable, rate, size
from weft_cli.quoting import identifier, literal
from weft_cli.redact import redact


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 kB"),
        (150 * 1024, "150 kB"),
        (3 * 1024**3, "3.0 GB"),
        (5000 * 1024**4, "5000 TB"),
        (-2048, "-2.0 kB"),
    ],
)
def test_size(count: float | None, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.7, "1 min"),
        (200, "3 min 20 s"),
        (timedelta(hours=2, minutes=5), "2 h 5 min"),
        (86400 * 3 + 3600 * 4, "3 d 4 h"),
        (-5, "-5.0 s"),
    ],
)
def test_duration(seconds: float | timedelta | None, text: str) -> None:
    assert duration(seconds) == text


def test_numbers_and_rates() -> None:
    assert [number(n) for n in (None, 0, 999_999, 1_500_000)] == ["-", "0", "999,999", "1.5M"]
    assert [rate(r) for r in (None, 0, 0.25, 1234.4)] == ["-", "0/s", "0.2/s", "1,234/s"]
    assert rate(12, "tx") == "12 tx/s"


def test_plain_data() -> None:
    assert plain_data(
        {
            "interval": timedelta(minutes=2),
            "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "numeric": [Decimal("12"), Decimal("1.5")],
            "conninfo": "host=a password=hush",
            "flag": True,
        }
    ) == {
        "interval": 120.0,
        "time": "2026-01-02T03:04:05+00:00",
        "numeric": [12, 1.5],
        "conninfo": "host=a password=********",
        "flag": True,
    }


@pytest.mark.parametrize(
    "text",
    [
        "password=hush",
        "host=a password = 'hu sh' dbname=b",
        r"password='it\'s hush' dbname=b",
        "postgresql://me:hush@host/db",
        "postgresql://host/db?user=me&password=hush&port=1",
        "sslpassword=hush sslmode=require",
        "failed: PASSWORD=hush",
        r"password=a\ hush dbname=b",
        "password=a'hush dbname=b",
        "password=a&hush dbname=b",
        "CREATE SUBSCRIPTION s CONNECTION 'host=a password=''hu sh'' dbname=b'",
        "oauth_client_secret=hush",
    ],
)
def test_no_password(text: str) -> None:
    shown = redact(text)
    assert "hush" not in shown
    assert "hu sh" not in shown
    assert "********" in shown


def test_redaction_leaves_the_rest() -> None:
    assert redact("postgresql://me:x@host:5432/db") == "postgresql://me:********@host:5432/db"
    assert redact("host=a password='x y' dbname=b") == "host=a password=******** dbname=b"
    assert redact("postgresql://host:5432/db") == "postgresql://host:5432/db"


def test_printable() -> None:
    assert printable("a\tb\x1b[31mc\n") == r"a\tb\x1b[31mc\n"
    assert printable("\x7f\x9b2J\u2028\u202e") == r"\x7f\x9b2J\u2028\u202e"
    assert printable("Zoë, 数据, password=hush") == "Zoë, 数据, password=********"


NAME = "t\nAll 62 checks are OK.\r\x9b2J"
ESCAPED = r"t\nAll 62 checks are OK.\r\x9b2J"


def shown(*renderables: RenderableType) -> str:
    output = io.StringIO()
    SafeConsole(file=output, width=160).print(*renderables)
    return output.getvalue()


def test_control_characters_are_escaped_wherever_they_are() -> None:
    """Also where somebody has forgotten printable()."""
    # rich drops a carriage return by itself from what is given to Text.
    styled = Text.assemble(("t\n", "bold"), "All 62 checks are OK.\x9b2J")
    assert shown(styled) == "t\\nAll 62 checks are OK.\\x9b2J\n"
    assert shown(NAME) == ESCAPED + "\n"
    table = Table.grid()
    table.add_row(NAME)
    assert (
        shown(Group(table, Padding(NAME, 0, expand=False))).split()
        == (ESCAPED * 2).replace("Jt", "J t").split()
    )


def test_escaping_keeps_styles() -> None:
    text = Text.assemble(("a\n", "bold"), ("\x9bb", "red"))
    output = io.StringIO()
    SafeConsole(file=output, force_terminal=True, color_system="standard").print(text)
    assert re.sub(r"\x1b\[[\d;]*m", "", output.getvalue()) == "a\\n\\x9bb\n"
    assert output.getvalue().startswith("\x1b[1ma")
    assert output.getvalue().endswith("b\x1b[0m\n")


def test_json_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    emit(Context(Options(output="json")), 1, "test", {"name": NAME}, lambda _: None)
    output = capsys.readouterr().out
    assert output.replace("\n", "").isprintable()
    assert json.loads(output)["name"] == NAME


def test_statements_can_be_copied_from_the_output() -> None:
    assert identifier('a"\n\\') == r'''U&"a""\000a\\"'''
    assert identifier('a"\\') == r""""a""\""""
    assert literal("it's\n\\").strip() == r"E'it''s\u000a\\'"
    assert literal("it's") == "'it''s'"
