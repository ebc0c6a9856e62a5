"""What a line between two servers is to be like; needs nothing but Python itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """What a line is to be like: seconds, and bits per second; 0 for the fastest possible."""

    rtt: float
    rate: float = 0.0

    @property
    def name(self) -> str:
        """As in the options."""
        rate = f", {self.rate / 1e6:g}mbit" if self.rate else ""
        return f"{self.rtt * 1000:g}ms{rate}"
