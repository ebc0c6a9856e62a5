/*
 * schema_statement.c
 *	  Decides which statements of pg_dump's script weft.copy_schema() runs.
 *
 * Only the few kinds of statements named here are run: those with which pg_dump creates a
 * table and what belongs to it.  All others are skipped, whatever they are and however they
 * got into the script.  For a statement that is run, this module says what it creates and
 * what it changes: it may change only what was created before, and a table may become part
 * of requested tables only.
 */
#include "postgres.h"

#include "api/schema_statement.h"
#include "catalog/pg_class.h"
#include "nodes/parsenodes.h"
#include "nodes/value.h"
#include "tcop/utility.h"
#include "utils/formatting.h"

static ObjectName *
object_name(const char *nspname, const char *relname)
{
	ObjectName *name = palloc0(sizeof(ObjectName));

	name->nspname = nspname;
	name->relname = relname;
	return name;
}

/* Is the name in a list? */
bool
object_names_have(List *names, const ObjectName *name)
{
	foreach_ptr(ObjectName, other, names)
	{
		if (other->is_statistics == name->is_statistics &&
			strcmp(other->nspname, name->nspname) == 0 &&
			strcmp(other->relname, name->relname) == 0)
			return true;
	}
	return false;
}

/*
 * Appends the name of a relation to a list.  Returns false if the schema is missing: pg_dump
 * always writes it, so the statement is not one of pg_dump's.
 */
static bool
note(List **names, const RangeVar *relation)
{
	if (relation == NULL || relation->schemaname == NULL || relation->catalogname != NULL)
		return false;
	*names = lappend(*names, object_name(relation->schemaname, relation->relname));
	return true;
}

/* The same for a list of names, the first two of which are schema and object. */
static bool
note_list(List **names, List *list)
{
	if (list_length(list) < 2 || !IsA(linitial(list), String) || !IsA(lsecond(list), String))
		return false;
	*names = lappend(*names, object_name(strVal(linitial(list)), strVal(lsecond(list))));
	return true;
}

/* The same for a statistics object. */
static bool
note_statistics(List **names, List *list)
{
	if (!note_list(names, list))
		return false;
	((ObjectName *) llast(*names))->is_statistics = true;
	return true;
}

static void
describe(SchemaStatement *statement, const char *type, const RangeVar *relation, const char *part)
{
	statement->type = type;
	statement->name = psprintf("%s.%s%s%s",
							   relation->schemaname ? relation->schemaname : "",
							   relation->relname, part ? " " : "", part ? part : "");
}

static bool
has_foreign_key(List *constraints)
{
	foreach_ptr(Constraint, constraint, constraints)
	{
		if (IsA(constraint, Constraint) && constraint->contype == CONSTR_FOREIGN)
			return true;
	}
	return false;
}

/*
 * Are these only columns and constraints?  pg_dump never writes LIKE, and adds foreign keys
 * later.
 */
static bool
are_own_elements(List *elements)
{
	foreach_ptr(Node, element, elements)
	{
		if (IsA(element, Constraint) ? has_foreign_key(list_make1(element)) :
			!IsA(element, ColumnDef) || has_foreign_key(((ColumnDef *) element)->constraints))
			return false;
	}
	return true;
}

static void
read_create_table(SchemaStatement *statement, CreateStmt *create)
{
	describe(statement, "table", create->relation, NULL);
	statement->is_table = true;
	if (create->if_not_exists || create->relation->relpersistence == RELPERSISTENCE_TEMP ||
		!are_own_elements(create->tableElts))
		return;
	foreach_node(RangeVar, parent, create->inhRelations)
	{
		if (!note(&statement->parents, parent))
			return;
	}
	if (note(&statement->creates, create->relation))
		statement->use = STATEMENT_RUN;
}

static void
read_create_sequence(SchemaStatement *statement, CreateSeqStmt *create)
{
	describe(statement, "sequence", create->sequence, NULL);
	if (create->if_not_exists || create->sequence->relpersistence == RELPERSISTENCE_TEMP)
		return;
	if (note(&statement->creates, create->sequence))
		statement->use = STATEMENT_RUN;
}

/* Only OWNED BY is run; it needs the table, too. */
static void
read_alter_sequence(SchemaStatement *statement, AlterSeqStmt *alter)
{
	DefElem    *option = list_length(alter->options) == 1 ? linitial(alter->options) : NULL;

	describe(statement, "sequence owned by", alter->sequence, NULL);
	if (option && strcmp(option->defname, "owned_by") == 0 &&
		note(&statement->needs, alter->sequence) &&
		note_list(&statement->needs, (List *) option->arg))
		statement->use = STATEMENT_RUN;
}

static void
read_index(SchemaStatement *statement, IndexStmt *index)
{
	describe(statement, "index", index->relation, NULL);
	if (index->idxname == NULL || index->if_not_exists || index->concurrent ||
		!note(&statement->needs, index->relation))
		return;
	statement->name = psprintf("%s.%s", index->relation->schemaname, index->idxname);
	statement->creates = list_make1(object_name(index->relation->schemaname, index->idxname));
	statement->use = STATEMENT_RUN;
}

static void
read_statistics(SchemaStatement *statement, CreateStatsStmt *create)
{
	bool		complete = note_statistics(&statement->creates, create->defnames);

	statement->type = "statistics";
	foreach_ptr(RangeVar, relation, create->relations)
		complete = complete && IsA(relation, RangeVar) && note(&statement->needs, relation);
	if (!complete || create->if_not_exists)
		return;
	statement->name = psprintf("%s.%s", strVal(linitial(create->defnames)),
							   strVal(lsecond(create->defnames)));
	statement->use = STATEMENT_RUN;
}

static void
read_alter_statistics(SchemaStatement *statement, AlterStatsStmt *alter)
{
	statement->type = "statistics";
	if (!note_statistics(&statement->needs, alter->defnames))
		return;
	statement->name = psprintf("%s.%s", strVal(linitial(alter->defnames)),
							   strVal(lsecond(alter->defnames)));
	statement->use = STATEMENT_RUN;
}

/* Names what a comment is on as pg_dump does: "public.COLUMN plain.a". */
static void
read_comment(SchemaStatement *statement, CommentStmt *comment)
{
	List	   *names = (List *) comment->object;
	const char *kind = NULL;

	statement->type = "comment";
	switch (comment->objtype)
	{
		case OBJECT_TABLE:
			kind = "TABLE";
			break;
		case OBJECT_COLUMN:
			kind = "COLUMN";
			break;
		case OBJECT_INDEX:
			kind = "INDEX";
			break;
		case OBJECT_SEQUENCE:
			kind = "SEQUENCE";
			break;
		case OBJECT_STATISTIC_EXT:
			kind = "STATISTICS";
			break;
		case OBJECT_TABCONSTRAINT:
			kind = "CONSTRAINT";
			break;
		default:
			return;
	}
	if (!IsA(names, List) ||
		!(comment->objtype == OBJECT_STATISTIC_EXT ? note_statistics : note_list)
		(&statement->needs, names))
		return;
	statement->name = psprintf("%s.%s %s%s%s", strVal(linitial(names)), kind, strVal(lsecond(names)),
							   list_length(names) > 2 ? "." : "",
							   list_length(names) > 2 ? strVal(lthird(names)) : "");
	statement->use = STATEMENT_RUN;
}

/* A constraint with an index creates that index. */
static void
read_constraint(SchemaStatement *statement, AlterTableStmt *alter, Constraint *constraint)
{
	describe(statement, "constraint", alter->relation, constraint->conname);
	if (constraint->contype == CONSTR_FOREIGN)
	{
		statement->type = "fk constraint";
		return;
	}
	if (constraint->conname && (constraint->contype == CONSTR_PRIMARY ||
								constraint->contype == CONSTR_UNIQUE ||
								constraint->contype == CONSTR_EXCLUSION))
		statement->creates = list_make1(object_name(alter->relation->schemaname,
													constraint->conname));
	statement->use = STATEMENT_RUN;
}

/* An identity column creates its sequence. */
static void
read_identity(SchemaStatement *statement, AlterTableStmt *alter, AlterTableCmd *command)
{
	Constraint *identity = (Constraint *) command->def;

	describe(statement, "identity", alter->relation, command->name);
	if (!IsA(identity, Constraint) || identity->contype != CONSTR_IDENTITY)
		return;
	foreach_node(DefElem, option, identity->options)
	{
		if (strcmp(option->defname, "sequence_name") != 0)
			continue;
		if (!note_list(&statement->creates, (List *) option->arg))
			return;
		statement->type = "sequence";
		statement->name = psprintf("%s.%s", strVal(linitial((List *) option->arg)),
								   strVal(lsecond((List *) option->arg)));
	}
	statement->use = STATEMENT_RUN;
}

static void
read_attach(SchemaStatement *statement, AlterTableStmt *alter, PartitionCmd *attach)
{
	describe(statement, alter->objtype == OBJECT_INDEX ? "index attach" : "table attach",
			 attach->name, NULL);

	/*
	 * The parent may have existed before.  That of an index follows from its
	 * table.
	 */
	if (alter->objtype == OBJECT_TABLE)
		statement->parents = statement->needs;
	statement->needs = NIL;
	if (note(&statement->needs, attach->name))
		statement->use = STATEMENT_RUN;
}

static void
read_alter_table(SchemaStatement *statement, AlterTableStmt *alter)
{
	AlterTableCmd *command = linitial(alter->cmds);

	describe(statement, "setting", alter->relation, command->name);
	if (alter->missing_ok || !note(&statement->needs, alter->relation) ||
		(alter->objtype != OBJECT_TABLE && alter->objtype != OBJECT_INDEX))
		return;

	switch (command->subtype)
	{
		case AT_AddConstraint:
			read_constraint(statement, alter, (Constraint *) command->def);
			break;
		case AT_AddIdentity:
			read_identity(statement, alter, command);
			break;
		case AT_AttachPartition:
			read_attach(statement, alter, (PartitionCmd *) command->def);
			break;
		case AT_ColumnDefault:
			describe(statement, "default", alter->relation, command->name);
			statement->use = STATEMENT_RUN;
			break;
		case AT_ReplicaIdentity:
			describe(statement, "replica identity", alter->relation, NULL);
			statement->use = STATEMENT_RUN;
			break;
		case AT_ClusterOn:
		case AT_SetAccessMethod:
		case AT_SetCompression:
		case AT_SetNotNull:
		case AT_SetOptions:
		case AT_SetRelOptions:
		case AT_SetStatistics:
		case AT_SetStorage:
			statement->use = STATEMENT_RUN;
			break;
		case AT_EnableRowSecurity:
		case AT_ForceRowSecurity:
			describe(statement, "row security", alter->relation, NULL);
			break;
		default:
			break;
	}
	/* pg_dump writes one command per statement. */
	if (list_length(alter->cmds) != 1)
		statement->use = STATEMENT_SKIPPED;
}

static void
read_parameter(SchemaStatement *statement, VariableSetStmt *set)
{
	statement->use = set->kind == VAR_SET_VALUE && set->name &&
		strcmp(set->name, "default_table_access_method") == 0 ?
		STATEMENT_PARAMETER : STATEMENT_IGNORED;
}

/* Classifies a parsed statement. */
SchemaStatement *
schema_statement_read(Node *tree)
{
	SchemaStatement *statement = palloc0(sizeof(SchemaStatement));

	statement->use = STATEMENT_SKIPPED;
	statement->type = asc_tolower(CreateCommandName(tree), strlen(CreateCommandName(tree)));
	statement->name = "";
	switch (nodeTag(tree))
	{
		case T_CreateStmt:
			read_create_table(statement, (CreateStmt *) tree);
			break;
		case T_CreateSeqStmt:
			read_create_sequence(statement, (CreateSeqStmt *) tree);
			break;
		case T_AlterSeqStmt:
			read_alter_sequence(statement, (AlterSeqStmt *) tree);
			break;
		case T_IndexStmt:
			read_index(statement, (IndexStmt *) tree);
			break;
		case T_CreateStatsStmt:
			read_statistics(statement, (CreateStatsStmt *) tree);
			break;
		case T_AlterStatsStmt:
			read_alter_statistics(statement, (AlterStatsStmt *) tree);
			break;
		case T_CommentStmt:
			read_comment(statement, (CommentStmt *) tree);
			break;
		case T_AlterTableStmt:
			read_alter_table(statement, (AlterTableStmt *) tree);
			break;
		case T_CreateTrigStmt:
			describe(statement, "trigger", ((CreateTrigStmt *) tree)->relation,
					 ((CreateTrigStmt *) tree)->trigname);
			break;
		case T_RuleStmt:
			describe(statement, "rule", ((RuleStmt *) tree)->relation,
					 ((RuleStmt *) tree)->rulename);
			break;
		case T_CreatePolicyStmt:
			describe(statement, "policy", ((CreatePolicyStmt *) tree)->table,
					 ((CreatePolicyStmt *) tree)->policy_name);
			break;
		case T_VariableSetStmt:
			read_parameter(statement, (VariableSetStmt *) tree);
			break;
		case T_SelectStmt:
			statement->use = STATEMENT_IGNORED;
			break;
		default:
			break;
	}
	return statement;
}
