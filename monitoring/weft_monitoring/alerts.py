"""Alert rules for Prometheus, and their tests for "promtool test rules"."""

import re
from typing import Any

from .definitions import Alert, Source, without_links
from .yaml_text import to_yaml

RULES = "weft.rules.yml"


def annotations(alert: Alert) -> dict[str, str]:
    return {
        "summary": alert.summary,
        "description": without_links(f"{alert.meaning} {alert.remedy}"),
    }


def rules(source: Source) -> str:
    return to_yaml(
        {
            "groups": [
                {
                    "name": "weft",
                    "rules": [
                        {
                            "alert": alert.name,
                            "expr": alert.expr,
                            "for": alert.hold,
                            "labels": {"severity": alert.severity},
                            "annotations": annotations(alert),
                        }
                        for alert in source.alerts
                    ],
                }
            ]
        }
    )


def expanded(text: str, alert: Alert) -> str:
    """What Prometheus makes of a template."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: alert.labels[match[1]], text)
    return re.sub(r"\{\{ \$value [^}]*\}\}", alert.test.value, text)


def selector(metric: str, labels: dict[str, str]) -> str:
    inside = ", ".join(
        '{}="{}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"'))
        for name, value in labels.items()
    )
    return f"{metric}{{{inside}}}"


def rule_tests(source: Source) -> str:
    """For each alert, one test in which it fires and one in which it does not."""
    found: list[dict[str, Any]] = []
    for alert in source.alerts:
        firing = {
            "exp_labels": {**alert.labels, "severity": alert.severity},
            "exp_annotations": {
                name: expanded(text, alert) for name, text in annotations(alert).items()
            },
        }
        for what, series, expected in (
            ("fires", alert.test.fires, [firing]),
            ("keeps quiet", alert.test.quiet, []),
        ):
            found.append(
                {
                    "name": f"{alert.name} {what}",
                    "interval": "1m",
                    "input_series": [
                        {"series": selector(metric, alert.labels), "values": values}
                        for metric, values in series.items()
                    ],
                    "alert_rule_test": [
                        {
                            "eval_time": f"{alert.test.at}m",
                            "alertname": alert.name,
                            "exp_alerts": expected,
                        }
                    ],
                }
            )
    return to_yaml({"rule_files": [RULES], "evaluation_interval": "1m", "tests": found})
