"""The tables of docs/monitoring.md."""

import re

from .definitions import Alert, Source

SIDES = {
    "subscriber": "Queries of the subscriber, in each database that has the extension",
    "publisher": "Queries of the publisher, in each database that is published",
}


def metrics(source: Source) -> str:
    lines: list[str] = []
    for side, title in SIDES.items():
        lines += [f"### {title}", ""]
        for query in source.on(side):
            labels = ", ".join(f"`{label}`" for label in query.all_labels)
            lines += [f"{query.about}. Labels: {labels}.", "", "| metric | type | meaning |"]
            lines.append("|---|---|---|")
            lines += [
                f"| `{column.metric}` | {column.type} | {column.help} |" for column in query.columns
            ]
            lines.append("")
    lines += ["### Labels", "", "| label | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in source.labels.items()]
    return "\n".join(lines)


def alert(what: Alert) -> str:
    expr = what.expr.replace("|", "\\|")
    hold = "" if what.hold == "0m" else f" for {what.hold}"
    return (
        f"### {what.name}\n\n*{what.severity}*: `{expr}`{hold}\n\n"
        f"{what.meaning}\n\n**Remedy.** {what.remedy}"
    )


def alerts(source: Source) -> str:
    return "\n\n".join(alert(each) for each in source.alerts)


def with_section(document: str, name: str, text: str) -> str:
    """Replaces what stands between the two comments of a generated section."""
    begin, end = f"<!-- generated: {name} -->", "<!-- end -->"
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(document):
        raise ValueError(f"there is no section {begin} … {end}")
    return pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", document, count=1)


def filled(document: str, source: Source) -> str:
    document = with_section(document, "metrics", metrics(source))
    return with_section(document, "alerts", alerts(source))
