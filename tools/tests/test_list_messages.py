"""What is found of the source's messages."""

from pathlib import Path

from list_messages import Message, messages, messages_of_c, messages_of_sql, table_of_messages

C = """
    ereport(ERROR,
            (errcode(ERRCODE_UNDEFINED_TABLE),
             errmsg("table \\"%s\\" (see \\"a)\\") does not"
                    " exist: " INT64_FORMAT "%%", name, number),
             errdetail("It has %lld rows.", rows),
             errhint("Create it.")));
    ereport(DEBUG1, (errmsg("nobody sees this")));
    ereport(LOG, (errmsg("only the log has this")));
    ereport(level, (errmsg("%s", text)));
"""

SQL = """
    RAISE EXCEPTION 'node "%" isn''t "%"', a, b
        USING ERRCODE = 'undefined_object', HINT = format('Call %s.', c);
    RAISE NOTICE 'no error';
"""


def test_c():
    found = list(messages_of_c(C))
    text = 'table "…" (see "a)") does not exist: …%'
    assert Message(text, "undefined_table", "It has … rows.", "Create it.") in found
    assert [message.text for message in found] == [text, "…"]


def test_sql():
    hint = "Call …."
    assert list(messages_of_sql(SQL)) == [
        Message('node "…" isn\'t "…"', "undefined_object", "", hint)
    ]


def test_tree(tmp_path: Path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.c").write_text(C)
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "01-a.sql").write_text(SQL)
    assert [message.text[:4] for message in messages(tmp_path)] == ["node", "tabl"]
    assert '| `node "…" isn\'t "…"` | undefined_object | Call …. |' in table_of_messages(tmp_path)
