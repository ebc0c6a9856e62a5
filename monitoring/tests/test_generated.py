"""The generated files have the structure that their readers want."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import bargauge, stat, table, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard
from situation import MONITORING, TREE
from weft_monitoring.definitions import Source

OPTIONS: dict[str, Any] = {
    "bargauge": bargauge.Options,
    "stat": stat.Options,
    "table": table.Options,
    "timeseries": timeseries.Options,
}


def load(name: str) -> Any:
    return yaml.safe_load((MONITORING / name).read_text())


def generate(tree: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, tree / "monitoring/generate.py", *options], capture_output=True, text=True
    )


def test_files_are_current() -> None:
    made = generate(TREE, "--check")
    assert (made.returncode, made.stderr) == (0, "")


def test_stale_file_is_found(tmp_path: Path) -> None:
    for name in ("monitoring", "docs"):
        (tmp_path / name).mkdir()
    for path in ("generate.py", "metrics.toml"):
        (tmp_path / "monitoring" / path).write_text((MONITORING / path).read_text())
    (tmp_path / "monitoring/weft_monitoring").symlink_to(MONITORING / "weft_monitoring")
    (tmp_path / "docs/monitoring.md").write_text((TREE / "docs/monitoring.md").read_text())
    assert generate(tmp_path).returncode == 0
    assert generate(tmp_path, "--check").returncode == 0
    rules = tmp_path / "monitoring/prometheus/weft.rules.yml"
    rules.write_text(rules.read_text() + "\n")
    made = generate(tmp_path, "--check")
    assert made.returncode == 1
    assert "monitoring/prometheus/weft.rules.yml is not current" in made.stderr


@pytest.mark.parametrize(
    ("side", "name"), [("subscriber", "weft"), ("publisher", "weft_publisher")]
)
def test_sql_exporter(source: Source, side: str, name: str) -> None:
    """The rules that sql_exporter itself checks when it reads a collector."""
    made = load(f"sql_exporter/{name}.collector.yml")
    assert set(made) == {"collector_name", "metrics", "queries"}
    assert made["collector_name"] == name
    queries = {query["query_name"]: query["query"] for query in made["queries"]}
    assert queries == {query.full_name: query.sql + "\n" for query in source.on(side)}
    for metric in made["metrics"]:
        query, column = source.metrics[metric["metric_name"]]
        assert metric == {
            "metric_name": column.metric,
            "type": column.type,
            "help": column.help,
            "key_labels": list(query.all_labels),
            "values": [column.name],
            "query_ref": query.full_name,
        }
        assert not set(metric["values"]) & set(metric["key_labels"])
    assert {metric["metric_name"] for metric in made["metrics"]} == {
        name for name, (query, _) in source.metrics.items() if query.on == side
    }
    example = load("sql_exporter/sql_exporter.yml")
    assert name in [each for job in example["jobs"] for each in job["collectors"]]


def test_cloudnative_pg(source: Source) -> None:
    made = load("cloudnative_pg/weft.yaml")
    assert (made["apiVersion"], made["kind"]) == ("v1", "ConfigMap")
    found = set()
    for text in made["data"].values():
        for name, query in yaml.safe_load(text).items():
            usages = [
                (column, entry["usage"])
                for item in query["metrics"]
                for column, entry in item.items()
            ]
            labels = [column for column, usage in usages if usage == "LABEL"]
            for column, usage in usages[len(labels) :]:
                metric = f"{name}_{column}"
                assert usage == source.metrics[metric][1].type.upper()
                assert labels == list(source.metrics[metric][0].all_labels)
                found.add(metric)
    assert found == source.metrics.keys()


def test_pgwatch(source: Source) -> None:
    made = load("pgwatch/weft.yaml")
    assert set(made["metrics"]) == {query.full_name for query in source.queries}
    for query in source.queries:
        metric = made["metrics"][query.full_name]
        counters = {column.name for column in query.columns} - set(metric["gauges"])
        assert counters == {column.name for column in query.columns if column.type == "counter"}
        assert set(metric["sqls"]) == {17 if query.on == "subscriber" else 15}
    in_presets = [name for preset in made["presets"].values() for name in preset["metrics"]]
    assert sorted(in_presets) == sorted(made["metrics"])


def lost(original: Any, kept: Any, path: str = "") -> list[str]:
    """What Grafana's own types do not know of a document."""
    if isinstance(original, dict):
        return [
            found
            for name, value in original.items()
            for found in (
                lost(value, kept[name], f"{path}.{name}")
                if isinstance(kept, dict) and name in kept
                else [f"{path}.{name}"]
            )
        ]
    if isinstance(original, list):
        if len(original) != len(kept):
            return [path]
        return [
            found
            for number, (one, other) in enumerate(zip(original, kept, strict=True))
            for found in lost(one, other, f"{path}[{number}]")
        ]
    return [] if original == kept else [path]


def through(kind: Any, document: Any) -> Any:
    return json.loads(json.dumps(kind.from_json(document), cls=JSONEncoder))


def test_dashboard_is_what_grafana_understands(source: Source) -> None:
    made = json.loads((MONITORING / "grafana/weft.json").read_text())
    assert lost(made, through(Dashboard, made)) == []
    panels = [panel for panel in made["panels"] if panel["type"] != "row"]
    assert len(panels) == len(list(source.panels))
    for panel in panels:
        assert lost(panel["options"], through(OPTIONS[panel["type"]], panel["options"])) == []
        if "custom" in panel["fieldConfig"]["defaults"]:
            custom = panel["fieldConfig"]["defaults"]["custom"]
            assert lost(custom, through(timeseries.FieldConfig, custom)) == []


def test_unknown_field_of_dashboard_is_found() -> None:
    made = json.loads((MONITORING / "grafana/weft.json").read_text())
    made["panels"][1]["fieldConfig"]["defaults"]["units"] = "bytes"
    assert lost(made, through(Dashboard, made)) == [
        ".panels[1].fieldConfig.defaults.units",
    ]


def test_panels_do_not_overlap() -> None:
    made = json.loads((MONITORING / "grafana/weft.json").read_text())
    taken: dict[tuple[int, int], str] = {}
    for panel in made["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                other = taken.setdefault((x, y), panel["title"])
                assert other == panel["title"], f"{panel['title']} covers {other}"
    ids = [panel["id"] for panel in made["panels"]]
    assert len(set(ids)) == len(ids)
