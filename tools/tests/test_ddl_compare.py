"""What tools/ddl_compare.py makes of two dumps."""

import ddl_compare
import pytest

HEAD = """--
-- PostgreSQL database dump
--

SET client_encoding = 'UTF8';

"""


def entry(kind: str, name: str, text: str) -> str:
    return f"--\n-- Name: {name}; Type: {kind}; Schema: public; Owner: a\n--\n\n{text}\n\n\n"


@pytest.fixture
def compare(monkeypatch):
    def function(one: str, other: str) -> ddl_compare.Differences:
        dumps = {"one": HEAD + one, "other": HEAD + other}
        monkeypatch.setattr(ddl_compare, "run", lambda *command: dumps[command[-1]])
        result = ddl_compare.Differences()
        ddl_compare.compare_schemas("one", "other", result)
        return result

    return function


def test_equal_but_for_settings(compare):
    table = entry("TABLE", "t", "CREATE TABLE public.t (\n    id integer\n);")
    other = "SET default_tablespace = x;\n" + table + "\\unrestrict abc\n"
    result = compare(table + "\\unrestrict xyz\n", other)
    assert not result.schema and not result.local


def test_each_difference(compare):
    one = entry("TABLE", "t", "CREATE TABLE t (a int);") + entry("VIEW", "v", "CREATE VIEW v;")
    other = entry("TABLE", "t", "CREATE TABLE t (b int);") + entry("INDEX", "i", "CREATE INDEX i;")
    assert compare(one, other).schema == [
        "unexpected: INDEX public.i",
        "different: TABLE public.t",
        "missing: VIEW public.v",
    ]


def test_entries_of_the_same_name(compare):
    one = entry("RULE", "r", "CREATE RULE 1;") + entry("RULE", "r", "CREATE RULE 2;")
    assert compare(one, entry("RULE", "r", "CREATE RULE 1;")).schema == ["different: RULE public.r"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("USER MAPPING", "CREATE USER MAPPING x;"),
        ("TABLE", "CREATE UNLOGGED TABLE x (a int);"),
        ("COMMENT", "COMMENT ON LARGE OBJECT x IS 'x';"),
    ],
)
def test_not_replicated(compare, kind, text):
    result = compare(entry(kind, "x", text), "")
    assert not result.schema
    assert result.local == [f"missing: {kind} public.x"]


def test_what_belongs_to_an_unlogged_table(compare):
    table = entry("TABLE", "x", "CREATE UNLOGGED TABLE x ();")
    one = table + entry("INDEX", "i", "CREATE INDEX i ON x;")
    assert not compare(one, "").schema


def test_without(compare):
    old = compare(entry("VIEW", "v", "CREATE VIEW v;"), "")
    new = compare(entry("VIEW", "v", "CREATE VIEW v;") + entry("VIEW", "w", "CREATE VIEW w;"), "")
    assert new.without(old).schema == ["missing: VIEW public.w"]
