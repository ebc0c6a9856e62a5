"""Settings of Sphinx, which makes a site of docs/ and the other documents (tools/build-docs.sh)."""

import re
import sys
from pathlib import Path

from pygments.lexers.configs import IniLexer
from sphinx.application import Sphinx

TREE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TREE / "tools"))

from list_messages import table_of_messages  # noqa: E402

project = "Weft"
html_title = "Weft"
html_theme = "furo"
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
extensions = ["myst_parser"]
# Pages link to documents in other folders, which are therefore a part of the site.
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "bench/README.md", "cli/README.md", "src/README.md"]
html_extra_path: list[str] = []
myst_heading_anchors = 4
# Examples leave things out with "…", which no language knows.
suppress_warnings = ["misc.highlighting_failure"]


def tables_of_contents(index: str) -> str:
    """The sidebar: a group for each section of the index, with the pages that it links to."""
    tables = ""
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        pages = re.findall(r"\]\(([^)]*)\.md\)", section)
        lines = ["```{toctree}", ":hidden:", f":caption: {section.splitlines()[0]}", "", *pages]
        tables += "\n".join(["", *lines, "```", ""])
    return tables


def prepare(_app: Sphinx, page: str, content: list[str]) -> None:
    """Adds lists to two pages, and removes what pages say to their test."""
    if page == root_doc:
        content[0] += tables_of_contents(content[0])
    if page == "docs/errors":
        content[0] = content[0].replace("<!-- all messages -->", table_of_messages(TREE))
    content[0] = re.sub(
        r"^<!-- .*?-->$",
        # lines keep their numbers, which warnings name
        lambda match: "\n" * match[0].count("\n"),
        content[0],
        flags=re.DOTALL | re.MULTILINE,
    )


def setup(app: Sphinx) -> None:
    app.add_lexer("conf", IniLexer)
    app.connect("source-read", prepare)
