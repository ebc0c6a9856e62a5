"""A dashboard for Grafana 10 and later."""

import json
from typing import Any

from .definitions import Panel, Source, Target

# A dashboard is 24 columns wide.
WIDTH = 24
WIDTHS = {"stat": 4, "timeseries": 8, "bargauge": 8, "table": 12}
HEIGHTS = {"stat": 4, "timeseries": 8, "bargauge": 8, "table": 8}
# what $s stands for in metrics.toml
SUBSCRIPTIONS = 'instance=~"$instance", datname=~"$datname", subname=~"$subname"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def expression(text: str) -> str:
    return text.replace("$s}", SUBSCRIPTIONS + "}")


def target(panel: Panel, number: int, what: Target) -> dict[str, Any]:
    made = {
        "refId": chr(ord("A") + number),
        "datasource": DATASOURCE,
        "expr": expression(what.expr),
        "legendFormat": what.legend or "__auto",
    }
    if panel.type == "timeseries":
        return made | {"range": True}
    return made | {"instant": True} | ({"format": "table"} if panel.type == "table" else {})


def thresholds(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.bad is not None:
        steps.append({"color": "red", "value": panel.bad})
    return {"mode": "absolute", "steps": steps}


def defaults(panel: Panel) -> dict[str, Any]:
    made: dict[str, Any] = {"unit": panel.unit, "thresholds": thresholds(panel)}
    if panel.type == "timeseries":
        made["custom"] = {
            "fillOpacity": 20 if panel.stack else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"},
        }
    if panel.unit == "percentunit":
        made |= {"min": 0, "max": 1}
    return made


def options(panel: Panel) -> dict[str, Any]:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.type == "timeseries":
        return {
            "legend": {
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
                "calcs": [],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.type == "stat":
        return {"reduceOptions": last, "colorMode": "value", "graphMode": "area"}
    if panel.type == "bargauge":
        return {"reduceOptions": last, "orientation": "horizontal", "displayMode": "basic"}
    return {"showHeader": True}


def without_columns(*names: str) -> list[dict[str, Any]]:
    exclude = dict.fromkeys(names, True)
    return [{"id": "organize", "options": {"excludeByName": exclude}}]


def panel_json(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    made = {
        "id": number,
        "type": panel.type,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": WIDTHS[panel.type], "h": HEIGHTS[panel.type]},
        "targets": [target(panel, i, each) for i, each in enumerate(panel.targets)],
        "fieldConfig": {"defaults": defaults(panel), "overrides": []},
        "options": options(panel),
    }
    if panel.type == "table":
        made["transformations"] = without_columns("Time", "__name__", "job")
    return made


def panels(source: Source) -> list[dict[str, Any]]:
    """Panels from left to right, each row under a title."""
    made: list[dict[str, Any]] = []
    y = 0
    for row in source.rows:
        made.append(
            {
                "id": len(made) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
                "panels": [],
            }
        )
        y += 1
        x = height = 0
        for panel in row.panels:
            if x + WIDTHS[panel.type] > WIDTH:
                x, y, height = 0, y + height, 0
            made.append(panel_json(panel, len(made) + 1, x, y))
            x += WIDTHS[panel.type]
            height = max(height, HEIGHTS[panel.type])
        y += height
    return made


def variable(name: str, label: str, among: str) -> dict[str, Any]:
    """The values of a label of subscriptions, chosen by the variables before it."""
    query = f"label_values(weft_subscription_up{{{among}}}, {name})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard(source: Source) -> str:
    made = {
        "title": "Weft",
        "uid": "weft",
        "description": "Logical replication with Weft: lag, apply, errors, copies, slots, groups.",
        "tags": ["postgresql", "weft"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                variable("instance", "Exporter", ""),
                variable("datname", "Database", 'instance=~"$instance"'),
                variable("subname", "Subscription", 'instance=~"$instance", datname=~"$datname"'),
            ]
        },
        "panels": panels(source),
    }
    return json.dumps(made, indent=2) + "\n"
