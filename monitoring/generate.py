#!/usr/bin/env python
"""Writes what is generated from metrics.toml; with --check, fails if a file is not current."""

import argparse
import sys
from pathlib import Path

from weft_monitoring import alerts, dashboard, document, exporters
from weft_monitoring.definitions import Source, read

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parent / "docs" / "monitoring.md"
HEAD = "# Generated from monitoring/metrics.toml by monitoring/generate.py; do not edit.\n"


def files(source: Source) -> dict[Path, str]:
    yaml = {
        "sql_exporter/weft.collector.yml": exporters.sql_exporter(source, "subscriber"),
        "sql_exporter/weft_publisher.collector.yml": exporters.sql_exporter(source, "publisher"),
        "prometheus-sql-exporter/weft.yml": exporters.debian_sql_exporter(source, "subscriber"),
        "prometheus-sql-exporter/weft_publisher.yml": exporters.debian_sql_exporter(
            source, "publisher"
        ),
        "cloudnative_pg/weft.yaml": exporters.cloudnative_pg(source),
        "pgwatch/weft.yaml": exporters.pgwatch(source),
        f"prometheus/{alerts.RULES}": alerts.rules(source),
        "prometheus/weft.rules.test.yml": alerts.rule_tests(source),
    }
    made = {HERE / name: HEAD + text for name, text in yaml.items()}
    made[HERE / "grafana/weft.json"] = dashboard.dashboard(source)
    made[DOCUMENT] = document.filled(DOCUMENT.read_text(), source)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    stale = 0
    for path, text in files(read(HERE / "metrics.toml")).items():
        if path.exists() and path.read_text() == text:
            continue
        stale += 1
        name = path.relative_to(HERE.parent)
        if check:
            print(f"{name} is not current: run monitoring/generate.py", file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(f"written: {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
