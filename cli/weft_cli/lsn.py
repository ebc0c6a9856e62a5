"""Positions in WAL as numbers."""

# wal_segment_size of nearly every server
SEGMENT_SIZE = 16 * 1024 * 1024


def parse(text: str | None) -> int | None:
    """The number of a pg_lsn; None for none, and for 0/0, which means the same."""
    if not text:
        return None
    high, _, low = text.partition("/")
    return (int(high, 16) << 32 | int(low, 16)) or None


def text(position: int | None) -> str | None:
    return None if position is None else f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def segment_name(position: int, segment_size: int = SEGMENT_SIZE) -> str:
    """The name of the WAL file with the byte before this position, without the timeline."""
    number = (position - 1) // segment_size
    per_log = (1 << 32) // segment_size
    return f"{number // per_log:08X}{number % per_log:08X}"
