"""What metrics.toml says is consistent, and follows the conventions of Prometheus."""

import re
from collections import Counter

import pytest
from weft_monitoring.alerts import annotations
from weft_monitoring.definitions import PREFIX, Source, metrics_in, without_links
from weft_monitoring.document import with_section

# the units of Prometheus that occur, at the end of a name or before _total
UNITS = ("bytes", "seconds")
OTHER_UNITS = re.compile(r"(^|_)(ms|milliseconds|minutes|hours|kb|kib|mb|mib|gb|percent)(_|$)")


def test_names_are_unique(source: Source) -> None:
    names = [
        *(query.name for query in source.queries),
        *(alert.name for alert in source.alerts),
    ]
    metrics = [column.metric for query in source.queries for column in query.columns]
    for each in (names, metrics):
        assert [name for name, count in Counter(each).items() if count > 1] == []


def test_counters_and_only_they_end_with_total(source: Source) -> None:
    for name, (_, column) in source.metrics.items():
        assert column.type in ("counter", "gauge"), name
        assert name.endswith("_total") == (column.type == "counter"), name


def test_units_are_base_units(source: Source) -> None:
    for name in source.metrics:
        assert re.fullmatch(r"[a-z][a-z_]*[a-z]", name), name
        assert not OTHER_UNITS.search(name), name
    with_unit = [name for name in source.metrics if name.removesuffix("_total").endswith(UNITS)]
    assert "weft_subscription_apply_lag_bytes" in with_unit and len(with_unit) > 20


def test_labels_are_explained(source: Source) -> None:
    used = {label for query in source.queries for label in query.all_labels}
    assert used == set(source.labels)
    assert {query.on for query in source.queries} == {"subscriber", "publisher"}


def test_alerts_and_panels_use_metrics_that_exist(source: Source) -> None:
    expressions = [alert.expr for alert in source.alerts]
    expressions += [target.expr for panel in source.panels for target in panel.targets]
    for expression in expressions:
        used = metrics_in(expression)
        assert used and used <= source.metrics.keys(), expression


def test_each_metric_is_of_use(source: Source) -> None:
    """What is measured is also shown."""
    shown: set[str] = set()
    for panel in source.panels:
        for target in panel.targets:
            shown |= metrics_in(target.expr)
    for alert in source.alerts:
        shown |= metrics_in(alert.expr)
    unused = sorted(source.metrics.keys() - shown)
    # for queries by hand
    assert unused == [
        "weft_copy_left_seconds",
        "weft_cut_made_total",
        "weft_node_link_lag_seconds",
        "weft_slot_inactive_seconds",
        "weft_slot_replay_lag_seconds",
        "weft_subscription_last_error_timestamp_seconds",
    ]


def test_tests_of_alerts_have_series_of_real_metrics(source: Source) -> None:
    for alert in source.alerts:
        for series in (alert.test.fires, alert.test.quiet):
            assert set(series) == metrics_in(alert.expr), alert.name
            for metric in series:
                query, _ = source.metrics[metric]
                if metric != "weft_conflict_resolved_total":
                    assert set(alert.labels) == set(query.all_labels), (alert.name, metric)


def test_templates_name_labels_that_the_alert_has(source: Source) -> None:
    for alert in source.alerts:
        text = " ".join(annotations(alert).values())
        used = set(re.findall(r"\$labels\.(\w+)", text))
        assert used <= set(alert.labels), alert.name
        assert ("$value" in text) == bool(alert.test.value), alert.name


def test_metrics_are_found_in_expressions() -> None:
    found = metrics_in(f"rate({PREFIX}_a_total[5m]) > {PREFIX}_b_bytes and weft.health()")
    assert found == {"weft_a_total", "weft_b_bytes"}


def test_links_become_text() -> None:
    assert without_links("see [A b](#a-b), and [docs/c.md](c.md)") == (
        'see "A b" in docs/monitoring.md, and docs/c.md'
    )


def test_document_without_a_section_is_an_error() -> None:
    document = "a\n<!-- generated: x -->\nold\n<!-- end -->\nb"
    assert with_section(document, "x", "new") == (
        "a\n<!-- generated: x -->\n\nnew\n\n<!-- end -->\nb"
    )
    with pytest.raises(ValueError, match="generated: y"):
        with_section(document, "y", "new")
