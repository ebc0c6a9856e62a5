"""The command "weft"."""

__version__ = "0.2.0"
