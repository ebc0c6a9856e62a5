/*
 * concurrent_order.c
 *	  Which schema changes must not overtake which others.
 *
 * A schema change P that waits for its worker may be overtaken by a later one S only if S has nothing to do
 * with P: both would have the same result in the other order.  That is so if no relation is
 * touched by both.  The publisher sends the qualified names of the relations that a statement has
 * touched, before and after it.  If there are none, because an event trigger has captured the statement, or because it is
 * not about relations, then the names are those in its text, without their schemas: too many
 * rather than too few.  Only kinds of statements are read of which all names are known;
 * anything else has to do with everything, for instance ALTER SCHEMA ... RENAME.
 *
 * In a node group, P and S may have come from two members, by different subscriptions.  If S has seen
 * P (seen.c), then P was stored here before S is executed.  Therefore the statements of all
 * subscriptions of the group have one order, which is that in which they were stored.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "ddl/concurrent_order.h"
#include "ddl/ddl_queue.h"
#include "nodes/parsenodes.h"
#include "nodes/value.h"
#include "node_identity.h"
#include "replication/worker_internal.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/regproc.h"

/* The last parts of the names of relations. */
typedef struct Names
{
	bool		all;			/* no names: it may be about anything */
	List	   *names;			/* of char * */
} Names;

static void
add(Names *names, const char *name)
{
	if (name != NULL)
		names->names = lappend(names->names, unconstify(char *, name));
	else
		names->all = true;
}

static void
add_relation(Names *names, RangeVar *relation)
{
	add(names, relation ? relation->relname : NULL);
}

/* A constraint may refer to another table, whose index it needs. */
static void
add_constraint(Names *names, Constraint *constraint)
{
	if (constraint->contype == CONSTR_FOREIGN)
		add_relation(names, constraint->pktable);
	if (constraint->indexname)
		add(names, constraint->indexname);
}

static void
add_column(Names *names, ColumnDef *column)
{
	foreach_node(Constraint, constraint, column->constraints)
		add_constraint(names, constraint);
}

static void
add_element(Names *names, Node *element)
{
	if (IsA(element, ColumnDef))
		add_column(names, (ColumnDef *) element);
	else if (IsA(element, Constraint))
		add_constraint(names, (Constraint *) element);
	else if (IsA(element, TableLikeClause))
		add_relation(names, ((TableLikeClause *) element)->relation);
	else
		names->all = true;
}

static void
add_create_table(Names *names, CreateStmt *create)
{
	add_relation(names, create->relation);
	foreach_ptr(RangeVar, parent, create->inhRelations)
		add_relation(names, parent);
	foreach_ptr(Node, element, create->tableElts)
		add_element(names, element);
}

static void
add_alter_table(Names *names, AlterTableStmt *alter)
{
	add_relation(names, alter->relation);
	foreach_node(AlterTableCmd, command, alter->cmds)
	{
		switch (command->subtype)
		{
			case AT_AddColumn:
			case AT_AddConstraint:
				add_element(names, command->def);
				break;
			case AT_AlterColumnType:
			case AT_ColumnDefault:
			case AT_DropColumn:
			case AT_DropConstraint:
			case AT_DropNotNull:
			case AT_SetNotNull:
			case AT_SetRelOptions:
				if (command->behavior == DROP_CASCADE)
					names->all = true;
				break;
			case AT_AttachPartition:
				names->all = alter->objtype != OBJECT_INDEX || names->all;
				add_relation(names, ((PartitionCmd *) command->def)->name);
				break;
			case AT_DetachPartition:
			case AT_DetachPartitionFinalize:
				add_relation(names, ((PartitionCmd *) command->def)->name);
				break;
			default:
				names->all = true;
		}
	}
}

static void
add_drop(Names *names, DropStmt *drop)
{
	switch (drop->removeType)
	{
		case OBJECT_INDEX:
		case OBJECT_SEQUENCE:
		case OBJECT_TABLE:
		case OBJECT_VIEW:
			foreach_node(List, object, drop->objects)
				add(names, strVal(llast(object)));
			break;
		default:
			names->all = true;
	}
	if (drop->behavior == DROP_CASCADE)
		names->all = true;
}

/* Adds the relations that a statement names, if all that it is about has a name in it. */
static void
add_statement(Names *names, Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_IndexStmt:
			add_relation(names, ((IndexStmt *) statement)->relation);
			add(names, ((IndexStmt *) statement)->idxname);
			break;
		case T_AlterTableStmt:
			add_alter_table(names, (AlterTableStmt *) statement);
			break;
		case T_CreateStmt:
			add_create_table(names, (CreateStmt *) statement);
			break;
		case T_DropStmt:
			add_drop(names, (DropStmt *) statement);
			break;
		case T_CreateFunctionStmt:
			names->all = ((CreateFunctionStmt *) statement)->replace;
			break;
		case T_AlterEnumStmt:
			names->all = ((AlterEnumStmt *) statement)->oldVal != NULL;
			break;
		case T_CreateSchemaStmt:
			names->all = ((CreateSchemaStmt *) statement)->schemaElts != NIL;
			break;
		case T_GrantStmt:
			names->all = !((GrantStmt *) statement)->is_grant;
			break;

			/*
			 * They neither need an index, nor does an index need them
			 * already.
			 */
		case T_CommentStmt:
		case T_CompositeTypeStmt:
		case T_CreateDomainStmt:
		case T_CreateEnumStmt:
		case T_CreateExtensionStmt:
		case T_CreateRangeStmt:
		case T_ViewStmt:
			break;
		default:
			names->all = true;
	}
}

/* Adds what the text of a schema change names.  What a backslash means depends on settings. */
static void
add_text(Names *names, const DdlMessage *message)
{
	List	   *trees;

	if (strchr(message->statement, '\\') == NULL)
	{
		trees = pg_parse_query(message->statement);
		if (list_length(trees) == 1)
		{
			add_statement(names, linitial_node(RawStmt, trees)->stmt);
			return;
		}
	}
	names->all = true;
}

static Names
names_of(const DdlMessage *message)
{
	Names		result = {0};

	foreach_ptr(char, name, message->touched)
		add(&result, strVal(llast(stringToQualifiedNameList(name, NULL))));
	if (message->touched == NIL)
		add_text(&result, message);
	return result;
}

static bool
have_common(List *names, List *others)
{
	foreach_ptr(char, name, names)
		foreach_ptr(char, other, others)
		if (strcmp(name, other) == 0)
		return true;
	return false;
}

/* Does a statement copy the indexes of a table?  It touches that no further. */
static bool
is_like(const DdlMessage *later, const DdlMessage *earlier)
{
	Names text = {0};

	if (strcmp(later->tag, "CREATE TABLE") != 0)
		return false;
	add_text(&text, later);
	return text.all || have_common(text.names, names_of(earlier).names);
}

/* Does a statement make an index part of another one?  It touches only that. */
static bool
is_attach(const DdlMessage *later, const DdlMessage *earlier)
{
	Names text = {0};

	if (strcmp(later->tag, "ALTER INDEX") != 0)
		return false;
	if (strchr(later->statement, '\\') != NULL)
		return true;
	add_text(&text, later);
	return have_common(text.names, names_of(earlier).names);
}

/* Must a schema change not overtake another one? */
bool
concurrent_depends(const DdlMessage *later, const DdlMessage *earlier)
{
	Names		names;
	Names		others;

	if (later->touched != NIL && earlier->touched != NIL)
		return have_common(later->touched, earlier->touched) || is_like(later, earlier) ||
			is_attach(later, earlier);
	names = names_of(later);
	others = names_of(earlier);

	/* DROP INDEX does not name the table that it touches. */
	if (strncmp(earlier->tag, "DROP", 4) == 0 && earlier->touched == NIL && names.names != NIL)
		return true;
	return names.all || others.all || have_common(names.names, others.names);
}

/* Returns the subscriptions whose statements have one order with those of this one. */
static List *
subscriptions(void)
{
	if (node_identity_for(MySubscription->name) == NULL)
		return list_make1_oid(MySubscription->oid);
	return list_append_unique_oid(node_identity_subscriptions(), MySubscription->oid);
}

/*
 * Returns the rows, out of those given, which must be executed before a schema change of the current
 * subscription: those that it must not overtake, and those that these must not overtake.
 */
List *
concurrent_before(const DdlMessage *later, List *rows)
{
	List	   *subids = rows == NIL ? NIL : subscriptions();
	List	   *messages = list_make1(unconstify(DdlMessage *, later));
	List	   *result = NIL;

	for (int i = list_length(rows) - 1; i >= 0; i--)
	{
		ConcurrentRow *row = list_nth(rows, i);
		DdlMessage *earlier;

		if (row->failed || !list_member_oid(subids, row->subid))
			continue;
		earlier = concurrent_message(row);
		foreach_ptr(DdlMessage, message, messages)
		{
			if (!concurrent_depends(message, earlier))
				continue;
			messages = lappend(messages, earlier);
			result = lcons(row, result);
			break;
		}
	}
	return result;
}

/* Returns the qualified name of the index that a statement creates, or NULL. */
static char *
created_index(const char *tag, const char *statement)
{
	IndexStmt  *create;

	if (strcmp(tag, "CREATE INDEX") != 0 || strchr(statement, '\\') != NULL)
		return NULL;
	create = castNode(IndexStmt, linitial_node(RawStmt, pg_parse_query(statement))->stmt);
	if (create->idxname == NULL || create->relation->schemaname == NULL)
		return NULL;
	return quote_qualified_identifier(create->relation->schemaname, create->idxname);
}

/*
 * Returns the statement that should have created the index that a DROP INDEX drops, and that has
 * failed; or NULL.
 */
ConcurrentRow *
concurrent_dropped(const DdlMessage *later)
{
	List	   *rows;
	List	   *subids;

	if (strcmp(later->tag, "DROP INDEX") != 0)
		return NULL;
	rows = concurrent_rows(InvalidOid);
	subids = rows == NIL ? NIL : subscriptions();
	foreach_ptr(ConcurrentRow, row, rows)
	{
		DdlMessage *message;
		char	   *index;

		if (!row->failed || !list_member_oid(subids, row->subid))
			continue;
		message = concurrent_message(row);
		index = created_index(message->tag, message->statement);
		if (index != NULL && have_common(list_make1(index), later->touched))
			return row;
	}
	return NULL;
}

/*
 * Returns the qualified name of an index that a DROP INDEX drops, and whose creation here was given up,
 * as far as the history knows; or NULL.
 */
char *
concurrent_given_up(const DdlMessage *later)
{
	if (strcmp(later->tag, "DROP INDEX") != 0)
		return NULL;
	foreach_ptr(char, statement, ddl_queue_skipped(subscriptions(), "CREATE INDEX"))
	{
		char	   *index = created_index("CREATE INDEX", statement);

		if (index != NULL && have_common(list_make1(index), later->touched))
			return index;
	}
	return NULL;
}
