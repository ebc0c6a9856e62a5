"""Each rule of check_source is broken once in a small tree that otherwise passes."""

import subprocess
import sys
from pathlib import Path

import pytest
from check_source.rules import Checker
from check_source.tree import Tree

README = """\
# A small tree

| folder | job | may include |
|---|---|---|
| root | shared | nothing |
| `ring/` | the ring | root |
| `apply/` | the writers | root, `ring/` |
| `api/` | SQL | all |
| `weft.c` | entry point | all |

## Modules

- `compat`: versions
- `guc`: parameters
- `weft`: entry point
- `ring/ring`: the ring
- `apply/order`: the order
- `apply/writer`: a writer
- `api/info`: a function

## External variables

| variable | module | why it is global |
|---|---|---|
| `weft_ring_size`, `weft_names` | `guc` | the server writes them |
"""

FILES = {
    "src/README.md": README,
    "src/compat.h": """\
#if PG_VERSION_NUM >= 180000
#define NEW 1
#endif
""",
    "src/guc.h": """\
extern int	weft_ring_size;		/* in kB */
extern char *weft_names[2];
""",
    "src/guc.c": """\
#include "guc.h"

int			weft_ring_size = 1;
char	   *weft_names[2] = {"a;{", "b"};
static int	hidden;
""",
    "src/weft.c": """\
#include "postgres.h"
#include "apply/writer.h"

PG_MODULE_MAGIC;

void
_PG_init(void)
{
	writer_start();
}
""",
    "src/ring/ring.h": """\
#ifndef WEFT_RING_H
#define WEFT_RING_H
#include "guc.h"

typedef struct Ring
{
	int			used;
} Ring;

extern void ring_append(Ring *ring,
						void (*callback) (int));
static inline int
ring_used(Ring *ring)
{
	return ring->used;
}
#endif
""",
    "src/ring/ring.c": """\
/*
 * ring.c
 *	  The ring: } ; "
 */
#include "ring.h"

void
ring_append(Ring *ring, void (*callback) (int))
{
	if (ring->used == '}')
		callback(1);
}
""",
    "src/apply/order.h": """\
typedef enum Order
{
	NOW,
	LATER,
} Order;
""",
    "src/apply/writer.h": """\
extern void writer_start(void);
extern PGDLLEXPORT void writer_main(Datum argument);
""",
    "src/apply/writer.c": """\
#include "order.h"
#include "ring/ring.h"
#include "writer.h"

struct Forward;

void
writer_start(void)
{
}

void
writer_main(Datum argument)
{
}
""",
    "src/api/info.c": """\
#include "apply/writer.h"
#include "ring/ring.h"

PG_FUNCTION_INFO_V1(weft_info);

Datum
weft_info(PG_FUNCTION_ARGS)
{
}
""",
    "sql/1-info.sql": """\
-- The SQL objects.
CREATE FUNCTION weft.info()
RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
	NULL;
END $$;
""",
}


class SmallTree:
    def __init__(self, root: Path):
        self.root = root
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def append(self, name: str, text: str) -> None:
        self.write(name, (self.root / name).read_text() + text)

    def prepend(self, name: str, text: str) -> None:
        self.write(name, text + (self.root / name).read_text())

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def findings(self) -> list[str]:
        return [str(finding) for finding in Checker(Tree(self.root)).findings()]


@pytest.fixture
def tree(tmp_path):
    return SmallTree(tmp_path)


def test_good_tree_passes(tree):
    assert tree.findings() == []


def test_cycle_within_a_folder(tree):
    tree.append("src/apply/order.h", '#include "writer.h"\n')
    assert tree.findings() == [
        "src/apply/order.h:6: cycle: apply/order -> apply/writer -> apply/order"
    ]


def test_cycle_through_a_body(tree):
    tree.write("src/guc.c", '#include "weft.h"\n' + FILES["src/guc.c"])
    tree.write("src/weft.h", "extern int\tx;\n")
    tree.write("src/weft.c", '#include "weft.h"\n#include "guc.h"\n\nint\t\t\tx;\n')
    tree.replace("src/README.md", "| `weft_ring", "| `x` | `weft` | why not |\n| `weft_ring")
    assert tree.findings() == ["src/guc.c:1: cycle: guc -> weft -> guc"]


def test_cycle_of_three_modules_is_told_once(tree):
    tree.write("src/apply/a.h", '#include "order.h"\n')
    tree.append("src/apply/order.h", '#include "writer.h"\n')
    tree.replace("src/apply/writer.c", "order.h", "a.h")
    tree.replace("src/README.md", "- `apply/order`", "- `apply/a`: a\n- `apply/order`")
    assert tree.findings() == [
        "src/apply/a.h:1: cycle: apply/a -> apply/order -> apply/writer -> apply/a"
    ]


def test_umbrella_header(tree):
    tree.append("src/apply/writer.h", "extern void ring_reset(void);\n")
    tree.append("src/ring/ring.c", "\nvoid\nring_reset(void)\n{\n}\n")
    assert tree.findings() == [
        "src/apply/writer.h:3: ring_reset is declared here, but not defined in apply/writer.c",
        "src/ring/ring.c:14: ring_reset is not static, but ring/ring.h does not declare it",
    ]


def test_umbrella_header_of_variables(tree):
    tree.append("src/apply/order.h", "extern Ring *rings[5];\nextern void (*order_hook) (int);\n")
    assert tree.findings() == [
        "src/apply/order.h:6: rings is declared here, but not defined in apply/order.c",
        "src/apply/order.h:7: order_hook is declared here, but not defined in apply/order.c",
    ]


def test_header_without_extern(tree):
    tree.append(
        "src/apply/order.h", "pg_noreturn void give_up(const char *why) pg_attribute_cold;\n"
    )
    assert tree.findings() == [
        "src/apply/order.h:6: give_up is declared here, but not defined in apply/order.c"
    ]


def test_extern_in_a_body(tree):
    tree.append("src/apply/writer.c", "extern void ring_append(void);\n")
    assert tree.findings() == [
        "src/apply/writer.c:16: extern in a .c file; include the header that declares it"
    ]


def test_extern_in_a_function(tree):
    tree.append("src/apply/writer.c", "static void\nlook(void)\n{\n\textern int used;\n}\n")
    assert tree.findings() == [
        "src/apply/writer.c:19: extern in a .c file; include the header that declares it"
    ]


def test_body_without_its_header(tree):
    tree.replace("src/ring/ring.c", '#include "ring.h"', "")
    assert tree.findings() == ["src/ring/ring.c:1: does not include ring/ring.h"]


def test_folder_that_is_not_allowed(tree):
    tree.append("src/ring/ring.h", '#include "apply/order.h"\n')
    assert tree.findings() == ["src/ring/ring.h:18: ring/ must not include apply/order.h"]


def test_folder_that_is_not_allowed_in_angle_brackets(tree):
    tree.append("src/ring/ring.h", "#include <apply/order.h>\n")
    assert tree.findings() == ["src/ring/ring.h:18: ring/ must not include apply/order.h"]


def test_root_includes_no_folder_but_weft_does(tree):
    tree.append("src/guc.c", '#include "ring/ring.h"\n')
    tree.replace("src/ring/ring.h", '#include "guc.h"\n', "")
    assert tree.findings() == ["src/guc.c:6: the root must not include ring/ring.h"]


def test_readme_allows_less(tree):
    tree.replace("src/README.md", "| `apply/` | the writers | root, `ring/` |",
                 "| `apply/` | the writers | root |")  # fmt: skip
    assert tree.findings() == ["src/apply/writer.c:2: apply/ must not include ring/ring.h"]


def test_readme_allows_more(tree):
    tree.replace("src/README.md", "| `ring/` | the ring | root |",
                 "| `ring/` | the ring | root, `apply/` |")  # fmt: skip
    assert tree.findings() == ['src/README.md:6: "`apply/`" is no folder of a row above this one']


def test_readme_lacks_a_folder(tree):
    tree.replace("src/README.md", "| `api/` | SQL | all |\n", "")
    assert "src/README.md:1: the table of folders lacks api" in tree.findings()


def test_readme_has_a_folder_too_many(tree):
    tree.replace("src/README.md", "| `api/` |", "| `copy/` | copies | root |\n| `api/` |")
    assert tree.findings() == ["src/README.md:8: there is no folder copy/"]


def test_readme_without_its_table(tree):
    tree.replace("src/README.md", "| folder | job | may include |", "| folder | job |")
    assert "src/README.md:1: no table with the columns folder, job, may include" in tree.findings()


def test_second_module_with_one_stem(tree):
    tree.write("src/ring/order.h", "")
    tree.replace("src/README.md", "- `apply/order`", "- `ring/order`: order\n- `apply/order`")
    assert tree.findings() == [
        "src/apply/order.h:1: has the stem of module ring/order",
        "src/ring/order.h:1: has the stem of module apply/order",
    ]


def test_unlisted_module(tree):
    tree.write("src/ring/spool.h", "")
    assert tree.findings() == ["src/README.md:1: the list of modules lacks ring/spool"]


def test_module_that_is_gone(tree):
    tree.replace("src/README.md", "- `apply/order`", "- `apply/stream`: streams\n- `apply/order`")
    assert tree.findings() == ["src/README.md:17: there is no module apply/stream"]


def test_module_without_its_job(tree):
    tree.replace("src/README.md", "- `apply/order`: the order", "- `apply/order`")
    assert tree.findings() == [
        "src/README.md:1: the list of modules lacks apply/order",
        'src/README.md:17: not of the form "- `module`: its job"',
    ]


def test_unlisted_variable(tree):
    tree.append("src/ring/ring.c", "\nRing\t\tthe_ring;\n")
    tree.append("src/ring/ring.h", "extern Ring the_ring;\n")
    assert tree.findings() == [
        "src/ring/ring.c:14: the_ring is not static, and not in the README's table of variables"
    ]


def test_variable_that_is_gone(tree):
    tree.replace("src/guc.c", "weft_ring_size = 1", "weft_size = 1")
    tree.replace("src/guc.h", "weft_ring_size", "weft_size")
    assert tree.findings() == [
        "src/README.md:25: there is no external variable weft_ring_size",
        "src/guc.c:3: weft_size is not static, and not in the README's table of variables",
    ]


def test_variable_of_another_module(tree):
    tree.replace("src/README.md", "| `guc` | the server", "| `ring/ring` | the server")
    assert tree.findings() == [
        "src/README.md:25: weft_names is a variable of module guc, not ring/ring",
        "src/README.md:25: weft_ring_size is a variable of module guc, not ring/ring",
    ]


def test_variable_without_a_reason(tree):
    tree.replace("src/README.md", "| the server writes them |", "| |")
    assert tree.findings() == ["src/README.md:25: no reason is given"]


def test_version_test_outside_compat(tree):
    tree.append("src/ring/ring.c", "#ifdef NEW\n#elif PG_VERSION_NUM > 1\n#endif\n")
    assert tree.findings() == ["src/ring/ring.c:14: only compat.h may test the server's version"]


def test_ring_includes_tuples(tree):
    tree.append("src/ring/ring.c", '#include "executor/executor.h"\n')
    assert tree.findings() == [
        "src/ring/ring.c:13: ring/ must not know tuples: executor/executor.h"
    ]


def test_ring_includes_tuples_through_the_root(tree):
    tree.append("src/guc.h", '#include "access/htup.h"\n')
    assert tree.findings() == [
        "src/ring/ring.h:3: ring/ must not know tuples: guc.h -> access/htup.h"
    ]


@pytest.mark.parametrize("name", ["src/apply/order.h", "sql/1-info.sql"])
def test_long_file(tree, name):
    tree.append(name, "\n" * 700)
    length = len((tree.root / name).read_text().splitlines())
    assert tree.findings() == [
        f"{name}:1: {length} lines, more than 700, and its head does not say why"
    ]


def test_long_file_with_a_reason(tree):
    reason = "/*\n * order.h\n *\t  Order.\n *\n * Longer than\n * 700 lines because it is.\n */\n"
    tree.prepend("src/apply/order.h", reason)
    assert tree.findings() == [
        "src/apply/order.h:1: says why it is longer than 700 lines, but is not"
    ]
    tree.append("src/apply/order.h", "\n" * 700)
    assert tree.findings() == []


def test_long_function(tree):
    tree.append("src/ring/ring.c", "\nstatic bool\nlong_one(int one,\n\t\t int two)\n{\n")
    tree.append("src/ring/ring.c", "\tx();\n" * 75 + "}\n")
    assert tree.findings() == []
    tree.replace("src/ring/ring.c", "\tx();\n}\n", "\tx();\n\tx();\n}\n")
    assert tree.findings() == [
        "src/ring/ring.c:14: long_one() has 81 lines, more than 80,"
        " and the file's head does not say why"
    ]
    reason = "other() is longer than 80 lines because it is."
    tree.replace("src/ring/ring.c", 'The ring: } ; "\n', f"The ring\n *\n * {reason}\n")
    assert len(tree.findings()) == 2
    tree.replace("src/ring/ring.c", "other()", "long_one()")
    assert tree.findings() == []


def test_long_function_in_sql(tree):
    tree.replace("sql/1-info.sql", "\tNULL;\n", "\tNULL;\n" * 75)
    assert tree.findings() == []
    tree.replace("sql/1-info.sql", "\tNULL;\nEND", "\tNULL;\n\tNULL;\nEND")
    assert tree.findings() == [
        "sql/1-info.sql:2: weft.info() has 81 lines, more than 80,"
        " and the file's head does not say why"
    ]
    tree.prepend("sql/1-info.sql", "-- weft.info() is longer than 80\n-- lines because it is.\n")
    assert tree.findings() == []


def test_file_that_is_named(tree):
    tree.append("src/ring/ring.c", "/* See ring.c, ring/ring.h and info.sql. */\n")
    tree.append("src/ring/ring.c", "/*\n * See lost.c,\n * apply/ring.h. */\n")
    tree.append("src/ring/ring.c", '/* "a.c" */ static char *text = "b.c";\n')
    tree.append("sql/1-info.sql", "-- See old.c.\n")
    tree.write("docs/about.md", "# About\n\nSee 1-info.sql and `2-info.sql`.\n")
    assert tree.findings() == [
        "docs/about.md:3: there is no file 2-info.sql",
        "sql/1-info.sql:8: there is no file old.c",
        "src/ring/ring.c:13: there is no file info.sql",
        "src/ring/ring.c:15: there is no file lost.c",
        "src/ring/ring.c:16: there is no file apply/ring.h",
        "src/ring/ring.c:17: there is no file a.c",
    ]


def run(tree: SmallTree, *folders: str) -> subprocess.CompletedProcess:
    program = Path(__file__).parent.parent / "check-includes.py"
    command = [sys.executable, str(program), "--tree", str(tree.root), *folders]
    return subprocess.run(command, capture_output=True, text=True)


def test_program(tree):
    assert run(tree).returncode == 0
    tree.append("src/apply/order.h", '#include "writer.h"\n')
    done = run(tree)
    assert done.returncode == 1
    assert done.stdout == "src/apply/order.h:6: cycle: apply/order -> apply/writer -> apply/order\n"
    assert run(tree, "src/apply/").stdout == done.stdout
    assert run(tree, "ring", "root").returncode == 0
