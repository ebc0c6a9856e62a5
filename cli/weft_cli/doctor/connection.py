"""Checks of the connection between the servers, and of the rights of both roles."""

from collections.abc import Iterator

from weft_cli.doctor.case import Case
from weft_cli.doctor.registry import Group, Hit, Needs, check
from weft_cli.doctor.sql_text import name
from weft_cli.doctor.table_facts import table_name, table_of


@check(
    "W001",
    Group.CONNECTION,
    Needs.SUBSCRIPTION,
    "publisher",
    "error",
    "the publisher can be reached",
    "Nothing answers where the subscription's connection string says, or the role cannot log in "
    "there. This command connects from the machine on which it runs, which may be another one "
    "than the subscriber, and, if the string names no user, as the user who runs it, unless "
    "PGUSER is set. What concerns the publisher is not checked.",
    "If the publisher is reached in another way from here, say so with --publisher. Otherwise "
    "start it, or change the subscription: ALTER SUBSCRIPTION ... CONNECTION.",
)
def reachable(case: Case) -> Iterator[Hit]:
    if case.unreachable:
        yield Hit(f'publisher of subscription "{case.name}"', case.unreachable)


@check(
    "W002",
    Group.CONNECTION,
    Needs.PUBLISHER,
    "publisher",
    "error",
    "the role may replicate",
    "The role in the connection string does not have the attribute REPLICATION (and is no "
    "superuser), so it cannot use a slot.",
    "Give the role the attribute, as a superuser. On managed services, grant the role of the "
    "service instead (rds_replication, for example), and use --ignore W002.",
)
def may_replicate(case: Case) -> Iterator[Hit]:
    for row in case.there.rows(
        "SELECT rolname AS role FROM pg_catalog.pg_roles"
        " WHERE rolname = current_user AND NOT rolreplication AND NOT rolsuper"
    ):
        yield Hit(
            f'role "{row["role"]}"',
            "the role does not have the attribute REPLICATION",
            (f"ALTER ROLE {name(row['role'])} REPLICATION;",),
        )


@check(
    "W003",
    Group.CONNECTION,
    Needs.BOTH,
    "publisher",
    "error",
    "the role may read published tables",
    "The role in the connection string may not read a published table. Changes are sent all the "
    "same, but the initial copy of the table fails, as do comparisons.",
    "Grant the role SELECT on the table, and USAGE on its schema.",
)
def may_read(case: Case) -> Iterator[Hit]:
    for row in case.there.rows(
        "SELECT n.nspname AS schema, c.relname AS name, current_user AS role,"
        " has_schema_privilege(n.oid, 'USAGE') AS schema_usable"
        " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = ANY (%s::oid[]) AND NOT (has_schema_privilege(n.oid, 'USAGE')"
        " AND has_table_privilege(c.oid, 'SELECT')) ORDER BY 1, 2",
        [table["oid"] for table in case.published],
    ):
        fix = [f"GRANT SELECT ON {table_of(row)} TO {name(row['role'])};"]
        if not row["schema_usable"]:
            fix.insert(0, f"GRANT USAGE ON SCHEMA {name(row['schema'])} TO {name(row['role'])};")
        yield Hit(
            f'table "{table_name(row)}"', f'role "{row["role"]}" may not read the table', tuple(fix)
        )


OWNERS = """
    SELECT DISTINCT o.rolname AS owner, s.rolname AS role, EXISTS (
            SELECT FROM pg_catalog.pg_roles p WHERE pg_has_role(o.oid, p.oid, 'MEMBER')
                AND (p.rolsuper OR p.rolcreaterole OR p.rolcreatedb OR p.rolreplication
                    OR p.rolbypassrls OR p.oid < 16384)) AS is_powerful
    FROM pg_catalog.pg_subscription_rel r
        JOIN pg_catalog.pg_class c ON c.oid = r.srrelid
        JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
        JOIN pg_catalog.pg_roles s ON s.oid = %s::oid
    WHERE r.srsubid = %s::oid AND NOT pg_has_role(s.oid, o.oid, 'SET')
    ORDER BY 1"""

DENIED = """
    SELECT n.nspname AS schema, c.relname AS name, s.rolname AS role
    FROM pg_catalog.pg_subscription_rel r
        JOIN pg_catalog.pg_class c ON c.oid = r.srrelid AND c.relkind <> 'S'
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_catalog.pg_roles s ON s.oid = %s::oid
    WHERE r.srsubid = %s::oid AND NOT (
        has_table_privilege(s.oid, c.oid, 'SELECT') AND has_table_privilege(s.oid, c.oid, 'INSERT')
        AND has_table_privilege(s.oid, c.oid, 'UPDATE')
        AND has_table_privilege(s.oid, c.oid, 'DELETE'))
    ORDER BY 1, 2"""


@check(
    "W004",
    Group.CONNECTION,
    Needs.SUBSCRIPTION,
    "subscriber",
    "error",
    "the owner of the subscription may write to its tables",
    "Changes are applied with the rights of each table's owner, to which the subscription's owner "
    "must be able to SET ROLE; or, with run_as_owner, with those of the subscription's owner. "
    "Otherwise apply stops at the first change of the table.",
    "Grant the subscription's owner the roles of the tables' owners, or the rights on the tables.",
)
def may_write(case: Case) -> Iterator[Hit]:
    assert case.subscription is not None
    if case.subscription["owner_is_superuser"]:
        return
    arguments = (case.subscription["owner_oid"], case.subscription["oid"])
    if case.subscription["run_as_owner"]:
        for row in case.subscriber.rows(DENIED, *arguments):
            yield Hit(
                f'table "{table_name(row)}"',
                f'role "{row["role"]}", which owns the subscription, may not write to the table',
                (
                    "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON"
                    f" {table_of(row)} TO {name(row['role'])};",
                ),
            )
        return
    for row in case.subscriber.rows(OWNERS, *arguments):
        yield Hit(
            f'role "{row["owner"]}"',
            f'it owns tables; the subscription\'s owner, "{row["role"]}", may not SET ROLE to it',
            # The subscription's owner has chosen the tables: nobody becomes a superuser by that.
            () if row["is_powerful"] else (f"GRANT {name(row['owner'])} TO {name(row['role'])};",),
        )
