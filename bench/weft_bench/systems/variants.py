"""Weft with settings that show what a part of it contributes."""

from __future__ import annotations

from ..build import Build
from .native import Weft


class WeftStrict(Weft):
    """A local commit for each transaction, so that no update is left out either."""

    name = "weft-strict"

    def subscriber_settings(self, build: Build) -> dict[str, object]:
        return {**super().subscriber_settings(build), "weft.commit_group_size": 1}


class WeftLz4(Weft):
    """The publisher compresses what it sends."""

    name = "weft-lz4"

    def subscriber_settings(self, build: Build) -> dict[str, object]:
        return {**super().subscriber_settings(build), "weft.compression": "lz4"}
