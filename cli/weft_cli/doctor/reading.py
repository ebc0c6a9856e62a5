"""What checks read, and what they raise if they cannot."""

from typing import Any

Row = dict[str, Any]


class NotChecked(Exception):
    """A check cannot be made; the message says why."""
