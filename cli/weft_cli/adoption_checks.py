"""What stands in the way of an adoption."""

from weft_cli.adoption import Adoption
from weft_cli.adoption_state import WEFT, State, find_pair
from weft_cli.publisher_plugin import Obstacle, plugin_obstacle
from weft_cli.quoting import identifier, literal, word


def obstacles(adoption: Adoption, state: State) -> list[Obstacle]:
    """Why the subscription cannot be adopted; none if it can."""
    name = adoption.subscription
    if state.slot_name is None:
        return [
            Obstacle(
                f'subscription "{name}" has no slot',
                f"Give it one: ALTER SUBSCRIPTION {identifier(name)} SET (slot_name = '…');",
            )
        ]
    pair = find_pair(state, adoption.plugin)
    found = []
    if not state.enabled and (not pair.changed or pair.old is None):
        found.append(
            Obstacle(
                f'subscription "{name}" is disabled',
                "Enable it, and wait until it is applied again.",
            )
        )
    elif not state.enabled and pair.old and pair.new and pair.new.confirmed > pair.old.confirmed:
        found.append(
            Obstacle(
                f'subscription "{name}" was disabled after it had begun to use slot'
                f' "{pair.new_name}"',
                "Enable it, and run this again.",
            )
        )
    if state.two_phase:
        found.append(
            Obstacle(
                f'subscription "{name}" has two_phase, which a copied slot cannot continue',
                "On 18, disable the subscription and set two_phase = false while no transaction"
                " is prepared.",
            )
        )
    if state.unready_tables:
        found.append(
            Obstacle(
                f"tables are being copied: {state.unready_tables}",
                f"SELECT weft.wait_for_subscription({literal(name)}, '1 hour');",
            )
        )
    if pair.old is not None and (pair.old.lost or not pair.old.here):
        why = pair.old.lost or "it belongs to another database"
        found.append(Obstacle(f'slot "{pair.old.name}" cannot be copied: {why}', ""))
    found += _managed_elsewhere(adoption, state)
    found += _publisher_obstacles(adoption)
    return found


def _managed_elsewhere(adoption: Adoption, state: State) -> list[Obstacle]:
    """Slots that Weft itself finds by their names."""
    name = adoption.subscription
    if name.startswith("weft_switch_"):
        return [Obstacle(f'subscription "{name}" belongs to a switch-over', "")]
    if adoption.subscriber.weft_extension is None:
        return []
    found = []
    # The view, because ordinary roles may not read the tables.
    if adoption.subscriber.value(
        "SELECT true FROM weft.node_replication WHERE subscription = %s LIMIT 1",
        name,
    ):
        found.append(
            Obstacle(
                f'subscription "{name}" belongs to a node group, which chooses the plugin itself',
                "",
            )
        )
    if adoption.subscriber.value(
        "SELECT true FROM weft.switch_attempt WHERE subid = %s"
        " AND phase IN ('begun', 'final', 'opened')",
        state.subid,
    ):
        found.append(
            Obstacle(
                f'a switch-over of subscription "{name}" has begun',
                f"weft switch-over {word(name)}",
            )
        )
    return found


def _publisher_obstacles(adoption: Adoption) -> list[Obstacle]:
    publisher = adoption.publisher
    if publisher.in_recovery:
        return [Obstacle(f"{publisher.name} is a standby", "Adopt on the primary server.")]
    obstacle = plugin_obstacle(publisher) if adoption.plugin == WEFT else None
    return [obstacle] if obstacle else []
