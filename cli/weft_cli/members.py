"""The members of a node group, as seen from this one."""

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from weft_cli.finding import Finding
from weft_cli.output import UNKNOWN, duration, printable, size
from weft_cli.server import Server

NODES = """
SELECT node_name AS name, node_id AS id, state, is_local, node_group_name AS "group"
FROM weft.node ORDER BY node_id
"""

REPLICATION = """
SELECT from_node, to_node, subscription, state, lag_bytes AS behind_bytes,
    extract(epoch FROM lag_time)::float8 AS behind_seconds, last_error
FROM weft.node_replication
"""

FINE = {"streaming", "catching up", "starting"}


def read_members(server: Server) -> dict[str, Any] | None:
    """The group and its members; None if this database is no member."""
    nodes = server.rows(NODES)
    if not nodes:
        return None
    links = server.rows(REPLICATION)
    for node in nodes:
        for key, end in (("receives", "from_node"), ("sends", "to_node")):
            ours = [link for link in links if link[end] == node["name"] and not node["is_local"]]
            node[key] = ours[0] if ours else None
    return {"group": nodes[0]["group"], "nodes": nodes}


def member_findings(members: dict[str, Any]) -> list[Finding]:
    findings = []
    for node in members["nodes"]:
        for key, verb in (("receives", "receives from"), ("sends", "sends to")):
            link = node[key]
            # Subscriptions are assessed by themselves; a missing one is not among them.
            if link is None or link["state"] in FINE:
                continue
            if key == "receives" and link["state"] != "missing":
                continue
            findings.append(
                Finding(
                    "member-not-connected",
                    "error" if link["state"] in ("missing", "lost") else "warning",
                    "member",
                    node["name"],
                    f"what this node {verb} node {node['name']}: {link['state']}",
                    "See weft.node_group_replication(), and the log of that node.",
                )
            )
    return findings


def members_view(members: dict[str, Any]) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title = Text(f"Node group {printable(members['group'] or UNKNOWN)}", style="bold")
    for name in ("node", "state", "receives from it", "sends to it"):
        table.add_column(name, overflow="fold")
    for node in members["nodes"]:
        if node["is_local"]:
            table.add_row(printable(node["name"]), node["state"], Text("this node", style="dim"))
        else:
            table.add_row(
                printable(node["name"]),
                node["state"],
                _link(node["receives"]),
                _link(node["sends"]),
            )
    return table


def _link(link: dict[str, Any] | None) -> Text:
    if link is None:
        return Text(UNKNOWN)
    text = Text(link["state"], style="" if link["state"] in FINE else "yellow")
    if link["behind_bytes"]:
        text.append(f", {size(link['behind_bytes'])}")
        if link["behind_seconds"]:
            text.append(f", {duration(link['behind_seconds'])}")
    return text
