"""Whether a publisher can use Weft's output plugin."""

from dataclasses import dataclass

from weft_cli.errors import MissingRights
from weft_cli.server import Server


@dataclass(frozen=True)
class Obstacle:
    problem: str
    remedy: str


def plugin_obstacle(publisher: Server) -> Obstacle | None:
    """Why it cannot use it; None if it can, or if this role may not know."""
    if publisher.weft_library is None:
        return Obstacle(
            f"Weft is not loaded on the publisher, {publisher.name}",
            "There: install Weft, ALTER SYSTEM SET shared_preload_libraries = 'weft'; restart.",
        )
    try:
        allowed = publisher.value(
            "SELECT setting = '' OR 'weft' = ANY (regexp_split_to_array(setting, '[\\s,\"]+'))"
            " FROM current_setting('output_plugin_libraries', true) setting"
        )
    except MissingRights:
        # The copy of the slot as a temporary one will tell.
        return None
    if allowed is False:
        return Obstacle(
            f"{publisher.name} does not allow the output plugin",
            "There: ALTER SYSTEM SET output_plugin_libraries = 'pgoutput, test_decoding, weft';"
            " SELECT pg_reload_conf();",
        )
    return None
