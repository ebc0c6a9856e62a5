"""The runner finds what it should find."""

from pathlib import Path

import check_docs
import pytest
from check_docs import (
    PageError,
    headings,
    read_page,
    unknown_messages,
    unlisted_pages,
    wrong_links,
)
from documents import difference, failures, normalized

NONE = "<!-- no servers -->\n"


def run(directory: Path, text: str) -> list[str]:
    path = directory / "page.md"
    path.write_text(NONE + text)
    return failures(read_page(path), [], directory)


def refused(directory: Path, text: str) -> str:
    path = directory / "page.md"
    path.write_text(text)
    with pytest.raises(PageError) as error:
        read_page(path)
    return str(error.value)


def test_difference_is_found(tmp_path):
    (found,) = run(
        tmp_path,
        "```sh\necho 2026-01-01 00:00:00 at 0/1234 and 5\n```\n\nprints\n\n"
        "```text\n2027-02-02 10:10:10 at 1/ABCD and 6\n```\n",
    )
    assert "-TIMESTAMP at LSN and 6" in found and "+TIMESTAMP at LSN and 5" in found


def test_error_is_found(tmp_path):
    (found,) = run(tmp_path, "```sh\necho a\n```\n```text\na\n```\n```sh\nfalse\n```\n")
    assert "exit code 1" in found


def test_a_shell_keeps_its_variables_and_hidden_commands_run(tmp_path):
    assert not run(tmp_path, "<!-- test:\nx=7\n-->\n```sh\necho $x\n```\n```text\n7\n```\n")


def test_what_is_not_run(tmp_path):
    assert not run(tmp_path, "<!-- not run: it fails -->\n```sh\nfalse\n```\n```text\nx\n```\n")


def test_what_is_normalized():
    assert normalized("a  0/0 12.5 s\n") == normalized("a   1F/22AB 3 s")
    assert normalized("10 rows") != normalized("11 rows")


def test_what_an_ellipsis_stands_for():
    assert not difference("a … z\n…\nend\n", "a b c z\n1\n2\nend\n")
    assert not difference("a\n…\n", "a\n")
    assert "-end" in difference("a\n…\nend\n", "a\nb\n")
    assert "-a … z" in difference("a … z\n", "a b\n")


def test_each_output_belongs_to_a_command(tmp_path):
    assert "nothing prints this" in refused(tmp_path, NONE + "```text\n1\n```\n")


def test_each_command_is_run_or_has_a_reason(tmp_path):
    assert "page.md:1: this is not run" in refused(tmp_path, "```sh\nls\n```\n")
    assert "says nothing" in refused(tmp_path, "<!-- not run: -->\n```sh\nls\n```\n")
    assert "of kind" in refused(tmp_path, NONE + "```\nls\n```\n")
    assert "there is no server" in refused(tmp_path, NONE + "<!-- on: a -->\n")


def test_links_are_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(check_docs, "TREE", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# A, `b` & c\n[1](#a-b--c) [2](#d) [3](other.md) [4](https://x.example)\n")
    assert headings(page) == {"a-b--c"}
    assert list(wrong_links(page)) == [
        "page.md:2: page.md has no heading #d",
        "page.md:2: there is no other.md",
    ]


def test_pages_that_nobody_finds(tmp_path, monkeypatch):
    monkeypatch.setattr(check_docs, "DOCS", tmp_path)
    (tmp_path / "index.md").write_text("- [A](a.md)\n")
    (tmp_path / "a.md").touch()
    (tmp_path / "b.md").touch()
    assert list(unlisted_pages()) == ["docs/index.md: there is no link to b.md"]


def test_messages_that_nobody_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(check_docs, "DOCS", tmp_path)
    (tmp_path / "errors.md").write_text("### `weft is not loaded`\n\n### `all is well`\n")
    assert list(unknown_messages()) == ["docs/errors.md: no source has the message: all is well"]
