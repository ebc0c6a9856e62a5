/*
 * changes.c
 *	  What a statement changes, in words that other members of a node group compare.
 *
 * Each member of a group has the message about a schema change, and decides whether two of them
 * may be executed in either order (ddl_conflict.c).  What a statement changes is found
 * out where it is made, from the objects that it has touched (touched.c), so that neither search_path nor
 * the form of the statement matters.  A change is
 *	 - what was changed: "relation public.t", "routine public.f(integer)", "schema s",
 *	   "default privileges of alice";
 *	 - a word of ddl_conflict.c for what has become of it;
 *	 - a part of it, such as a column, or an empty string.
 *
 * Some statements depend on more than they change.  A view, or a table LIKE another one, takes the columns that
 * its tables have at the moment ("read", "like").  A new object gets the default privileges ("use").
 * GRANT ... ON ALL TABLES IN SCHEMA affects what is in the schema at the moment: the statement itself is
 * "all" of the schema, and others are "within" it.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "catalog/catalog.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_default_acl.h"
#include "catalog/pg_foreign_table.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_publication_namespace.h"
#include "catalog/pg_publication_rel.h"
#include "catalog/pg_statistic_ext.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_type.h"
#include "ddl/changes.h"
#include "ddl/ddl_message.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

/* Finds the object that one belongs to, of which a group of changes is about; false if none is. */
static bool
resolve(ChangedHow *how, ObjectAddress *address)
{
	switch (address->classId)
	{
		case IndexRelationId:
		case InheritsRelationId:
		case ForeignTableRelationId:
			*how = CHANGED_ALTERED;
			address->classId = RelationRelationId;
			break;
		case AttrDefaultRelationId:
			*how = CHANGED_ALTERED;
			*address = GetAttrDefaultColumnAddress(address->objectId);
			break;
		case TypeRelationId:
			/* that of a table, or an array */
			if (OidIsValid(get_element_type(address->objectId)) ||
				OidIsValid(get_typ_typrelid(address->objectId)))
				return false;
			break;

			/* not replicated, or not as an object */
		case AuthIdRelationId:
		case DatabaseRelationId:
		case DbRoleSettingRelationId:
		case DefaultAclRelationId:
		case PublicationRelationId:
		case PublicationNamespaceRelationId:
		case PublicationRelRelationId:
		case SubscriptionRelationId:
			return false;
		default:
			break;
	}
	if (address->classId != RelationRelationId)
		return is_objectclass_supported(address->classId);
	return get_rel_relkind(address->objectId) != '\0' &&
		get_rel_relkind(address->objectId) != RELKIND_TOASTVALUE &&
		!IsToastNamespace(get_rel_namespace(address->objectId)) &&
		get_rel_persistence(address->objectId) != RELPERSISTENCE_TEMP;
}

/* Returns the kind and the identity of an object, or NULL if it does not exist. */
static char *
describe(const ObjectAddress *address)
{
	ObjectAddress whole = *address;
	char	   *identity;
	const char *kind;

	whole.objectSubId = 0;
	identity = getObjectIdentity(&whole, true);
	if (identity == NULL)
		return NULL;
	if (address->classId == RelationRelationId)
		kind = "relation";
	else if (address->classId == ProcedureRelationId)
		kind = "routine";
	else
		kind = getObjectTypeDescription(&whole, true);
	return psprintf("%s %s", kind, identity);
}

/* Returns the schema of an object, as SQL names it, or NULL. */
static char *
schema_of(const ObjectAddress *address)
{
	Oid			schema = is_objectclass_supported(address->classId) &&
		get_object_attnum_namespace(address->classId) != InvalidAttrNumber ?
		get_object_namespace(address) : InvalidOid;
	char	   *name = OidIsValid(schema) ? get_namespace_name(schema) : NULL;

	return name ? pstrdup(quote_identifier(name)) : NULL;
}

/* Returns what "drop" of an object is about; NULL if it does not exist, or there is no such change of it. */
char *
changes_name_of(Oid class_id, Oid object_id)
{
	ObjectAddress address;
	ChangedHow	how = CHANGED_DROPPED;

	ObjectAddressSet(address, class_id, object_id);
	return resolve(&how, &address) && how == CHANGED_DROPPED ? describe(&address) : NULL;
}

static List *
add_name(List *names, ChangedHow how, const ObjectAddress *address)
{
	char	   *object = describe(address);
	char	   *part = NULL;
	ChangedName *name;

	if (object == NULL)
		return names;
	if (address->classId == RelationRelationId && address->objectSubId > 0)
		part = get_attname(address->objectId, address->objectSubId, true);
	foreach_ptr(ChangedName, other, names)
		if (other->how == how && strcmp(other->object, object) == 0 &&
			strcmp(other->part ? other->part : "", part ? part : "") == 0)
		return names;
	name = palloc(sizeof(ChangedName));
	name->how = how;
	name->class_id = address->classId;
	name->object_id = address->objectId;
	name->object = object;
	name->schema = schema_of(address);
	name->part = part;
	return lappend(names, name);
}

/* Adds the name that a touched object has now, and that of the table of an index. */
List *
changes_note(List *names, ChangedHow how, Oid class_id, Oid object_id, int sub_id)
{
	ObjectAddress address;
	char		relkind;

	ObjectAddressSubSet(address, class_id, object_id, sub_id);
	if (!resolve(&how, &address))
		return names;
	names = add_name(names, how, &address);
	if (address.classId != RelationRelationId)
		return names;
	relkind = get_rel_relkind(address.objectId);
	if (relkind == RELKIND_INDEX || relkind == RELKIND_PARTITIONED_INDEX)
	{
		Oid			table = IndexGetRelation(address.objectId, true);

		if (OidIsValid(table))
		{
			ObjectAddressSet(address, RelationRelationId, table);
			names = add_name(names, CHANGED_PART, &address);
		}
	}
	return names;
}

static List *
add(List *changes, const char *change, const char *object, const char *part)
{
	DdlChange  *result;

	if (part == NULL)
		part = "";
	foreach_ptr(DdlChange, other, changes)
		if (strcmp(other->change, change) == 0 && strcmp(other->object, object) == 0 &&
			strcmp(other->part, part) == 0)
		return changes;
	result = palloc(sizeof(DdlChange));
	result->change = pstrdup(change);
	result->object = pstrdup(object);
	result->part = pstrdup(part);
	return lappend(changes, result);
}

static List *
add_read(List *changes, Oid relid, const char *change)
{
	ObjectAddress address;
	char	   *object;

	ObjectAddressSet(address, RelationRelationId, relid);
	object = OidIsValid(relid) ? describe(&address) : NULL;
	return object ? add(changes, change, object, NULL) : changes;
}

/* Adds the relations in a tree that the parser has made, or that the server has analyzed. */
static bool
find_read(Node *node, List **read)
{
	if (node == NULL)
		return false;
	if (IsA(node, RangeVar))
	{
		*read = list_append_unique_oid(*read, RangeVarGetRelid((RangeVar *) node, NoLock, true));
		return false;
	}
	if (IsA(node, RangeTblEntry))
	{
		*read = list_append_unique_oid(*read, ((RangeTblEntry *) node)->relid);
		return false;
	}
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, find_read, read, QTW_EXAMINE_RTES_BEFORE);
	return expression_tree_walker(node, find_read, read);
}

/* The same for a tree that the parser has made. */
static bool
find_read_raw(Node *node, List **read)
{
	if (node == NULL || IsA(node, RangeVar) || IsA(node, Query))
		return find_read(node, read);
	return raw_expression_tree_walker(node, find_read_raw, read);
}

/* The same for the body of a function: a list of lists of statements, or one. */
static void
find_read_body(Node *body, List **read)
{
	if (body == NULL)
		return;
	switch (nodeTag(body))
	{
		case T_List:
			foreach_ptr(Node, each, (List *) body)
				find_read_body(each, read);
			break;
		case T_ReturnStmt:
			(void) find_read_raw(((ReturnStmt *) body)->returnval, read);
			break;
		case T_DeleteStmt:
		case T_InsertStmt:
		case T_MergeStmt:
		case T_SelectStmt:
		case T_UpdateStmt:
			(void) find_read_raw(body, read);
			break;
		default:
			/* the server refuses others */
			break;
	}
}

/*
 * Returns the OIDs of the relations that a statement takes its columns from, and perhaps InvalidOid.  To be asked
 * before it is executed: the server changes the tree.
 */
List *
changes_tables_read(Node *statement)
{
	List	   *result = NIL;

	switch (nodeTag(statement))
	{
		case T_ViewStmt:
			(void) find_read_raw(((ViewStmt *) statement)->query, &result);
			break;
		case T_CreateTableAsStmt:
			/* a table is sent as its definition */
			if (((CreateTableAsStmt *) statement)->objtype == OBJECT_MATVIEW)
				(void) find_read_raw(((CreateTableAsStmt *) statement)->query, &result);
			break;
		case T_CreateFunctionStmt:
			find_read_body(((CreateFunctionStmt *) statement)->sql_body, &result);
			break;
		case T_CreateStmt:
			foreach_ptr(Node, element, ((CreateStmt *) statement)->tableElts)
				if (IsA(element, TableLikeClause))
				result = list_append_unique_oid(result,
												RangeVarGetRelid(((TableLikeClause *) element)->relation,
																 NoLock, true));
			break;
		default:
			break;
	}
	return result;
}

/* The same as a list of DdlChange. */
List *
changes_read(Node *statement)
{
	List	   *result = NIL;

	foreach_oid(relid, changes_tables_read(statement))
		result = add_read(result, relid, IsA(statement, CreateStmt) ? "like" : "read");
	return result;
}

/* Has a relation got a new column?  With IF NOT EXISTS it need not. */
static bool
has_got(List *names, const char *object, const char *column)
{
	foreach_ptr(ChangedName, name, names)
		if (name->part != NULL && strcmp(name->part, column) == 0 &&
			strcmp(name->object, object) == 0)
		return true;
	return false;
}

static List *
add_alter_table(List *changes, AlterTableStmt *statement, List *names, const char *object)
{
	const char *column;

	foreach_node(AlterTableCmd, command, statement->cmds)
	{
		switch (command->subtype)
		{
			case AT_AddColumn:
				column = castNode(ColumnDef, command->def)->colname;
				if (has_got(names, object, column))
					changes = add(changes, "column", object, column);
				break;
			case AT_AlterColumnType:
			case AT_ColumnDefault:
			case AT_DropColumn:
			case AT_DropNotNull:
			case AT_ResetOptions:
			case AT_SetCompression:
			case AT_SetNotNull:
			case AT_SetOptions:
			case AT_SetStatistics:
			case AT_SetStorage:
				/* a column of an index may have a number only */
				changes = command->name ? add(changes, "column", object, command->name) :
					add(changes, "options", object, NULL);
				break;
			case AT_ClusterOn:
			case AT_DropCluster:
			case AT_ReplaceRelOptions:
			case AT_ResetRelOptions:
			case AT_SetRelOptions:
				changes = add(changes, "options", object, NULL);
				break;
			default:
				changes = add(changes, "definition", object, NULL);
				break;
		}
	}
	return changes;
}

/* Does a statement replace what it creates, or leave it as it is, if that exists? */
static bool
replaces(Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_CreateFunctionStmt:
			return ((CreateFunctionStmt *) statement)->replace;
		case T_CreateTrigStmt:
			return ((CreateTrigStmt *) statement)->replace;
		case T_CreateTransformStmt:
			return ((CreateTransformStmt *) statement)->replace;
		case T_CreatePLangStmt:
			return ((CreatePLangStmt *) statement)->replace;
		case T_DefineStmt:
			return ((DefineStmt *) statement)->replace;
		case T_RuleStmt:
			return ((RuleStmt *) statement)->replace;
		case T_ViewStmt:
			return ((ViewStmt *) statement)->replace;
		case T_CreateSchemaStmt:
			return ((CreateSchemaStmt *) statement)->if_not_exists;
		default:
			return false;
	}
}

/*
 * Has the server chosen the name of a new relation?  It chooses another one where that exists.  An index that is the
 * statement's own is sent with its name.
 */
static bool
is_chosen(Node *statement, const ChangedName *name, bool first)
{
	const char *given;

	if (IsA(statement, CreateStatsStmt))
		return ((CreateStatsStmt *) statement)->defnames == NIL;
	if (name->class_id != RelationRelationId)
		return false;
	switch (nodeTag(statement))
	{
		case T_AlterTableStmt:
			return true;
		case T_CreateStmt:
			given = ((CreateStmt *) statement)->relation->relname;
			break;
		case T_IndexStmt:
			given = ((IndexStmt *) statement)->idxname;
			break;
		default:
			return false;
	}
	return given ? strcmp(get_rel_name(name->object_id), given) != 0 : !first;
}

/* Adds what belongs to an object that has come to a schema, or to the privileges of one. */
static List *
add_schema(List *changes, const ChangedName *name, const char *change)
{
	if (name->schema == NULL)
		return changes;
	return add(changes, change, psprintf("schema %s", name->schema), NULL);
}

static List *
add_created(List *changes, Node *statement, const ChangedName *name, bool first)
{
	const char *change = "new";

	if (replaces(statement))
		change = "replace";
	else if (is_chosen(statement, name, first))
		change = "chosen";
	changes = add(changes, change, name->object, NULL);
	return add_schema(changes, name, "within");
}

static List *
add_altered(List *changes, Node *statement, List *names, const ChangedName *name)
{
	switch (nodeTag(statement))
	{
		case T_AlterTableStmt:
			return add_alter_table(changes, (AlterTableStmt *) statement, names, name->object);
		case T_CommentStmt:
			return add(changes, "comment", name->object, name->part);
		case T_SecLabelStmt:
			return add(changes, "label", name->object, name->part);
		case T_GrantStmt:
			if (((GrantStmt *) statement)->targtype == ACL_TARGET_ALL_IN_SCHEMA)
				return add(changes, "all", name->object, NULL);
			changes = add_schema(changes, name, "within");
			return add(changes, ((GrantStmt *) statement)->is_grant ? "grant" : "revoke",
					   name->object, NULL);
		case T_RenameStmt:
		case T_AlterObjectSchemaStmt:
			changes = add_schema(changes, name, "within");
			return add(changes, "name", name->object, NULL);
		case T_CreateStmt:
		case T_IndexStmt:
		case T_CreateStatsStmt:
			/* the parent, or a table that gets an index */
			return add(changes, "part", name->object, NULL);
		default:
			return add(changes, replaces(statement) ? "replace" : "definition", name->object,
					   NULL);
	}
}

/* Names the default privileges of a role, in a schema, as SQL names it, or everywhere. */
static char *
privileges_of(const char *role, const char *schema)
{
	if (schema)
		return psprintf("default privileges of %s in %s", quote_identifier(role), schema);
	return psprintf("default privileges of %s", quote_identifier(role));
}

static List *
add_default_privileges(List *changes, AlterDefaultPrivilegesStmt *statement)
{
	const char *change = statement->action->is_grant ? "grant" : "revoke";
	List	   *roles = NIL;
	List	   *schemas = NIL;

	foreach_node(DefElem, option, statement->options)
	{
		if (strcmp(option->defname, "schemas") == 0)
			foreach_node(String, schema, (List *) option->arg)
				schemas = lappend(schemas, pstrdup(quote_identifier(strVal(schema))));
		else if (strcmp(option->defname, "roles") == 0)
			foreach_node(RoleSpec, role, (List *) option->arg)
				roles = lappend(roles,
								GetUserNameFromId(get_rolespec_oid(role, false), false));
	}
	if (roles == NIL)
		roles = list_make1(GetUserNameFromId(GetUserId(), false));
	foreach_ptr(char, role, roles)
	{
		if (schemas == NIL)
			changes = add(changes, change, privileges_of(role, NULL), NULL);
		foreach_ptr(char, schema, schemas)
			changes = add(changes, change, privileges_of(role, schema), NULL);
	}
	return changes;
}

/* A view that is replaced need not be touched itself, and a statistics object tells nothing of its table. */
static List *
add_named(List *changes, Node *statement)
{
	if (IsA(statement, ViewStmt) && replaces(statement))
		return add_read(changes, RangeVarGetRelid(((ViewStmt *) statement)->view, NoLock, true),
						"replace");
	if (IsA(statement, CreateStatsStmt))
		foreach_ptr(Node, name, ((CreateStatsStmt *) statement)->relations)
			if (IsA(name, RangeVar))
			changes = add_read(changes, RangeVarGetRelid((RangeVar *) name, NoLock, true), "part");
	if (IsA(statement, AlterDefaultPrivilegesStmt))
		changes = add_default_privileges(changes, (AlterDefaultPrivilegesStmt *) statement);
	return changes;
}

/*
 * Returns what a statement has changed, as a list of DdlChange.  "names" are those that it has touched,
 * "read" is what changes_read() has said.
 */
List *
changes_of(Node *statement, List *names, List *read)
{
	List	   *changes = list_copy(read);
	bool		created = false;

	foreach_ptr(ChangedName, name, names)
	{
		switch (name->how)
		{
			case CHANGED_CREATED:
				changes = add_created(changes, statement, name, !created);
				if (name->schema)
					changes = add(changes, "use",
								  privileges_of(GetUserNameFromId(GetUserId(), false),
												name->schema), NULL);
				created |= name->class_id == RelationRelationId;
				if (!created && (name->class_id == ProcedureRelationId ||
								 name->class_id == TypeRelationId ||
								 name->class_id == NamespaceRelationId))
					created = true;
				break;
			case CHANGED_ALTERED:
				changes = add_altered(changes, statement, names, name);
				break;
			case CHANGED_DROPPED:
				changes = name->part ? add_altered(changes, statement, names, name) :
					add(changes, "drop", name->object, NULL);
				break;
			case CHANGED_PART:
				changes = add(changes, "part", name->object, NULL);
				break;
		}
	}
	if (created)
		changes = add(changes, "use", privileges_of(GetUserNameFromId(GetUserId(), false), NULL),
					  NULL);
	return add_named(changes, statement);
}
