/*
 * seen.c
 *	  The order of schema changes of several members of a node group.
 *
 * Member A makes schema change D; C applies D, and makes E, which may depend on D, or be about the
 * same object: CREATE TABLE and ALTER TABLE, or two GRANTs.  B must execute E after D, but gets them by
 * different ways.  Therefore E says what C had applied of each other member when E was
 * executed, and B executes E once it has applied as much (apply/schema_wait.c waits, since this
 * fails until then).
 *
 * What has been applied of A is the progress of the replication origin of the subscription to A, a
 * position in A's WAL, which is the same on C and B.  C reads it after it has executed E.  If D is
 * about the same object, then the server's locks make E come before D or after D on C, so D is
 * counted only if E has seen it, or has nothing to do with it.
 *
 * That B waits for A does not depend on E: what A has committed before that position was
 * on C before E.  If A has left the group, then B has all that it will ever get.
 *
 * A position must be that of a commit, or B could wait for what never comes.  A node that has copied A has no
 * position of A before it has applied something: it neither waits for A, nor makes others wait.  Until
 * then, what fails because of another order is tried again (apply/schema_wait.c).  It says where it
 * has copied A, nobody waits for that, and whoever looks for schema changes without order knows what was in
 * the copy (unseen.c).  After a physical copy, the position of A is at first where the copy ends, which is no
 * commit either.
 *
 * Schema changes of which neither has seen the other have no order.  The group lock prevents most of
 * those that need one; ddl_conflict.c finds the rest.
 */
#include "postgres.h"

#include "commands/subscriptioncmds.h"
#include "compat.h"
#include "ddl/ddl_message.h"
#include "ddl/seen.h"
#include "node_identity.h"
#include "nodes/miscnodes.h"
#include "replication/logicalworker.h"
#include "replication/origin.h"
#include "replication/worker_internal.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/pg_lsn.h"

/* Returns how far the subscription to another member is; *exists tells if there is one. */
static XLogRecPtr
progress_of(const NodeMember *member, bool *exists)
{
	Oid			subscription = get_subscription_oid(member->subscription, true);
	char		name[NAMEDATALEN];
	RepOriginId origin;

	*exists = false;
	if (!OidIsValid(subscription))
		return InvalidXLogRecPtr;
	ReplicationOriginNameForLogicalRep(subscription, InvalidOid, name, sizeof(name));
	origin = replorigin_by_name(name, true);
	if (origin == InvalidRepOriginId)
		return InvalidXLogRecPtr;
	*exists = true;
	return replorigin_get_progress(origin, false);
}

static XLogRecPtr
parse_position(const char *text)
{
	ErrorSaveContext context = {T_ErrorSaveContext};
	Datum		result;

	if (!DirectInputFunctionCallSafe(pg_lsn_in, unconstify(char *, text), InvalidOid, -1,
									 (Node *) &context, &result))
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("the message about a schema change is malformed: %s",
						"a position is none")));
	return DatumGetLSN(result);
}

/* Is a position of a member that of a commit, and not where this node was copied from it? */
static bool
is_commit(XLogRecPtr progress, const NodeMember *member)
{
	return !XLogRecPtrIsInvalid(progress) &&
		(member->copied == NULL || progress != parse_position(member->copied));
}

static List *
add(List *seen, char *node, char *position)
{
	DdlSetting *entry = palloc(sizeof(DdlSetting));

	entry->name = node;
	entry->value = position;
	return lappend(seen, entry);
}

/*
 * Returns what has been applied of each other member, as a list of DdlSetting; and in *copied, where
 * those were copied of which nothing has been applied.
 */
List *
seen_get(List **copied)
{
	List	   *result = NIL;

	*copied = NIL;
	foreach_ptr(NodeMember, member, node_identity_members())
	{
		bool		exists;
		XLogRecPtr	progress = progress_of(member, &exists);

		if (is_commit(progress, member))
			result = add(result, member->name, psprintf(compat_lsn_format, LSN_FORMAT_ARGS(progress)));
		else if (member->copied)
			*copied = add(*copied, member->name, member->copied);
	}
	return result;
}

/* Fails unless as much has been applied here. */
void
seen_check(const List *seen)
{
	List	   *members = seen == NIL ? NIL : node_identity_members();

	foreach_ptr(DdlSetting, entry, seen)
	{
		XLogRecPtr	position = parse_position(entry->value);

		foreach_ptr(NodeMember, member, members)
		{
			bool		exists;
			XLogRecPtr	progress = progress_of(member, &exists);

			if (strcmp(member->name, entry->name) != 0 || !exists ||
				XLogRecPtrIsInvalid(progress) || progress >= position)
				continue;
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("changes of node \"%s\" up to " compat_lsn_format " must be applied before the schema change",
							member->name, LSN_FORMAT_ARGS(position)),
					 errdetail("They were there when it was made. The subscription \"%s\" has applied changes up to " compat_lsn_format ".",
							   member->subscription, LSN_FORMAT_ARGS(progress))));
		}
	}
}

static const char *
find(const List *seen, const char *node)
{
	foreach_ptr(DdlSetting, entry, seen)
		if (strcmp(entry->name, node) == 0)
		return entry->value;
	return NULL;
}

/* Returns what a schema change had seen of a member, or what was in the copy, as text. */
const char *
seen_of(const DdlMessage *message, const char *node)
{
	const char *result = find(message->seen, node);

	if (result == NULL)
		result = find(message->copied, node);
	return result ? result : "0/0";
}
