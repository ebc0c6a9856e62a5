"""Control characters in what is shown.

Names, values and messages come from servers on which others create objects.  A line break in a name
would forge a line of the output, and an escape sequence would control the terminal.  Everything for
people goes through a SafeConsole, which writes such characters as Python does: \\n, \\x1b, \\u202e.
"""

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

# Control characters, which of U+0080 to U+009F terminals obey as well; line and paragraph
# separators; and what reverses the direction of text, or is a half of a character.
CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def escape(text: str) -> str:
    """One line, without control characters."""
    return CONTROL.sub(lambda match: _escaped(match[0]), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _escape_styled(text: Text) -> Text:
    """The same for text with styles."""
    if not CONTROL.search(text.plain):
        return text
    result = text.blank_copy()
    end = 0
    for match in CONTROL.finditer(text.plain):
        result.append(text[end : match.start()]).append(_escaped(match[0]))
        end = match.end()
    return result.append(text[end:])


class SafeConsole(Console):
    """Every text is one line: lines are texts of their own.

    Callers escape text themselves where its length matters (printable()); here is what they forget.
    """

    def render_str(self, text: str, *arguments: Any, **options: Any) -> Text:
        return super().render_str(escape(text), *arguments, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        if isinstance(renderable, Text):
            renderable = _escape_styled(renderable)
        return super().render(renderable, options)
