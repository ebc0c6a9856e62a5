"""weft doctor: checks of both sides of subscriptions."""

from weft_cli.doctor.command import command

__all__ = ["command"]
