"""The commit that was measured; needs nothing but Python itself."""

from __future__ import annotations

import re


def parse_commit(text: str | None) -> dict[str, object]:
    """What bench/run has found out: a hash, and "dirty" behind it if files of the tree differ."""
    words = (text or "").split()
    if not words or not re.fullmatch(r"[0-9a-f]{7,64}", words[0]):
        return {"commit": None, "dirty": None}
    return {"commit": words[0], "dirty": "dirty" in words[1:]}
