"""The commands of documents do what the documents say."""

import os
from pathlib import Path

import pytest
from documents import blocks_of, failures, normalized
from servers import own_programs, programs_of
from trial import pair

DOCS = Path(__file__).resolve().parents[2] / "docs"


def check(name, old=None, settings="fsync = off"):
    if "```text\n```" in (DOCS / name).read_text() and "WEFT_DOCUMENTS" not in os.environ:
        pytest.skip("the document is not finished")
    with pair(old, settings=settings, names=("old.example", "new.example")) as servers:
        replacements = {f"host={server.name}": f"host={server.directory}" for server in servers}
        environment = {
            "PATH": f"{own_programs()}:/usr/bin:/bin",
            "PGUSER": "postgres",
            "PGPORT": "5432",
            "PGCONNECT_TIMEOUT": "10",
        }
        found = failures(DOCS / name, replacements, environment, servers[0].directory.parent)
        assert not found, "\n\n".join(found)


def test_verify():
    check("verify.md")


def test_upgrade():
    old = programs_of(15)
    if old is None:
        pytest.skip("there is no PostgreSQL 15")
    check("upgrade.md", old)


def test_difference_is_found(tmp_path):
    document = tmp_path / "document.md"
    document.write_text(
        "```sh\necho 2026-01-01 00:00:00 at 0/1234 and 5\n```\n\nprints\n\n"
        "```text\n2027-02-02 10:10:10 at 1/ABCD and 6\n```\n"
    )
    (found,) = failures(document, {}, {}, tmp_path)
    assert "-TIMESTAMP at LSN and 6" in found and "+TIMESTAMP at LSN and 5" in found


def test_error_is_found(tmp_path):
    document = tmp_path / "document.md"
    document.write_text("```sh\necho a\n```\n```text\na\n```\n```sh\nfalse\n```\n")
    (found,) = failures(document, {}, {}, tmp_path)
    assert "exit code 1" in found


def test_what_is_normalized():
    assert normalized("a  0/0 12.5 s\n") == normalized("a   1F/22AB 3 s")
    assert normalized("10 rows") != normalized("11 rows")


def test_each_output_belongs_to_a_command(tmp_path):
    document = tmp_path / "document.md"
    document.write_text("<!-- not run: no server -->\n```sh\nls\n```\n```text\n1\n```\n")
    with pytest.raises(ValueError, match="nothing prints this"):
        blocks_of(document)
