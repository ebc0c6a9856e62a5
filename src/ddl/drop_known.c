/*
 * drop_known.c
 *	  DROP ... IF EXISTS of several objects, of which some do not exist.
 *
 * Member A of a node group executes DROP TABLE IF EXISTS t, u without having a table u.  Member C, which does
 * not know of that, creates u.  A gets C's table.  So C must not drop it when the statement arrives there: it drops
 * what has been dropped on A, which is in its message (changes.c).
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_class.h"
#include "ddl/changes.h"
#include "ddl/ddl_message.h"
#include "ddl/drop_known.h"
#include "nodes/makefuncs.h"

/* Finds an object that a statement names; the class of its address is invalid if there is none. */
static ObjectAddress
find(ObjectType type, Node *name)
{
	ObjectAddress result = InvalidObjectAddress;
	Relation	rel = NULL;
	Oid			relid;

	switch (type)
	{
		case OBJECT_FOREIGN_TABLE:
		case OBJECT_INDEX:
		case OBJECT_MATVIEW:
		case OBJECT_SEQUENCE:
		case OBJECT_TABLE:
		case OBJECT_VIEW:
			/* The statement itself locks it, and what comes before it. */
			relid = RangeVarGetRelid(makeRangeVarFromNameList((List *) name), NoLock, true);
			if (OidIsValid(relid))
				ObjectAddressSet(result, RelationRelationId, relid);
			break;
		default:
			result = get_object_address(type, name, &rel, AccessShareLock, true);
			Assert(rel == NULL);
			break;
	}
	return result;
}

static bool
has_dropped(const List *changes, const char *object)
{
	foreach_ptr(DdlChange, change, changes)
		if (strcmp(change->change, "drop") == 0 && strcmp(change->object, object) == 0)
		return true;
	return false;
}

/*
 * Removes from a statement what has not been dropped where it was made.  "changes" are those of its
 * message.  Called under its settings.
 */
void
drop_known(DropStmt *statement, const List *changes)
{
	if (!statement->missing_ok || list_length(statement->objects) < 2)
		return;
	foreach_ptr(Node, name, statement->objects)
	{
		ObjectAddress address = find(statement->removeType, name);
		char	   *object = OidIsValid(address.objectId) ?
			changes_name_of(address.classId, address.objectId) : NULL;

		if (object != NULL && !has_dropped(changes, object))
			statement->objects = foreach_delete_current(statement->objects, name);
	}
}
