/*
 * dsn.c
 *	  Where the connection strings of members are kept.
 *
 * They contain passwords.  The contents of a table are in the WAL, and logical decoding
 * passes them to every role that has the attribute REPLICATION or follows a publication FOR
 * ALL TABLES.  Catalogs are not decoded.  Therefore connection strings are options of a user
 * mapping: PUBLIC's for the foreign server "weft_node", to which nobody connects.  Each
 * option has the name of a node.  Only the owner of the server, a superuser, sees these
 * options (pg_user_mappings).  The server belongs to the extension, so dumps do not contain
 * them.
 */
#include "postgres.h"

#include "catalog/dependency.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "foreign/foreign.h"
#include "group/dsn.h"
#include "nodes/makefuncs.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"

#define SERVER_NAME "weft_node"

PG_FUNCTION_INFO_V1(weft_create_dsn_store);
PG_FUNCTION_INFO_V1(weft_get_node_dsn);
PG_FUNCTION_INFO_V1(weft_set_node_dsn);

static RoleSpec *
public_role(void)
{
	RoleSpec   *role = makeNode(RoleSpec);

	role->roletype = ROLESPEC_PUBLIC;
	role->location = -1;
	return role;
}

/* Returns the connection string of a node, or NULL. */
static char *
find_dsn(Oid server, const char *name)
{
	foreach_node(DefElem, option, GetUserMapping(InvalidOid, server)->options)
	{
		if (strcmp(option->defname, name) == 0)
			return defGetString(option);
	}
	return NULL;
}

/*
 * weft.create_dsn_store()
 *
 * Creates the user mapping as a member of the extension that is being created; no command
 * does that.
 */
Datum
weft_create_dsn_store(PG_FUNCTION_ARGS)
{
	CreateUserMappingStmt *statement = makeNode(CreateUserMappingStmt);
	ObjectAddress mapping;

	statement->user = public_role();
	statement->servername = SERVER_NAME;
	mapping = CreateUserMapping(statement);
	recordDependencyOnCurrentExtension(&mapping, false);
	PG_RETURN_VOID();
}

/* pg_upgrade makes the user mapping again, but not as a member of the extension. */
void
dsn_adopt(void)
{
	ObjectAddress mapping;
	ObjectAddress extension;
	Oid			server = get_foreign_server_oid(SERVER_NAME, false);

	ObjectAddressSet(mapping, UserMappingRelationId, GetUserMapping(InvalidOid, server)->umid);
	if (OidIsValid(getExtensionOfObject(mapping.classId, mapping.objectId)))
		return;
	ObjectAddressSet(extension, ExtensionRelationId, get_extension_oid("weft", false));
	recordDependencyOn(&mapping, &extension, DEPENDENCY_EXTENSION);
}

/*
 * weft.node_dsn(name text) returns text
 *
 * An error rather than null if there is none: with null, functions that connect would
 * silently do nothing.
 */
Datum
weft_get_node_dsn(PG_FUNCTION_ARGS)
{
	char	   *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	char	   *dsn = find_dsn(get_foreign_server_oid(SERVER_NAME, false), name);

	if (dsn == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("no connection string is stored for node \"%s\"", name),
				 errhint("Set it with weft.set_node_dsn.")));
	PG_RETURN_TEXT_P(cstring_to_text(dsn));
}

/*
 * weft.set_node_dsn(name text, dsn text)
 *
 * Null removes it.
 */
Datum
weft_set_node_dsn(PG_FUNCTION_ARGS)
{
	Oid			server = get_foreign_server_oid(SERVER_NAME, false);
	AlterUserMappingStmt *statement = makeNode(AlterUserMappingStmt);
	char	   *name;
	bool		exists;
	Node	   *value = NULL;
	DefElemAction action = DEFELEM_DROP;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("argument must not be null")));
	name = text_to_cstring(PG_GETARG_TEXT_PP(0));

	/*
	 * All connection strings are in one row, which only one session may
	 * update at a time.
	 */
	LockDatabaseObject(ForeignServerRelationId, server, 0, ShareUpdateExclusiveLock);
	exists = find_dsn(server, name) != NULL;
	if (!PG_ARGISNULL(1))
	{
		value = (Node *) makeString(text_to_cstring(PG_GETARG_TEXT_PP(1)));
		action = exists ? DEFELEM_SET : DEFELEM_ADD;
	}
	else if (!exists)
		PG_RETURN_VOID();

	statement->user = public_role();
	statement->servername = SERVER_NAME;
	statement->options = list_make1(makeDefElemExtended(NULL, name, value, action, -1));
	AlterUserMapping(statement);
	PG_RETURN_VOID();
}
