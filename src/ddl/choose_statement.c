/*
 * choose_statement.c
 *	  Schema changes that an event trigger has captured.
 *
 * An event trigger (sql/16-ddl-capture.sql) knows the tag of a statement, but has no parser.  It finds the text by
 * rules of its own, and publishes whatever may be a schema change.  Here, the parse tree shows
 * whether the text is that of the statement, and what kind of statement it is.
 */
#include "postgres.h"

#include "ddl/choose_statement.h"
#include "ddl/ddl_kind.h"
#include "nodes/parsenodes.h"
#include "tcop/utility.h"

/*
 * Is the statement to be executed for one of the subscription's publications?  Fails if another one
 * was executed on the publisher.
 */
bool
choose_statement(const DdlMessage *message, Node *statement,
				 bool (*is_subscribed) (const char *publication))
{
	DdlKind		kind = ddl_kind(statement);

	if (strcmp(CreateCommandName(statement), message->tag) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("the text of a schema change is %s, but the publisher has executed %s",
						CreateCommandName(statement), message->tag)));
	if (kind == DDL_NEVER)
		return false;
	foreach_ptr(DdlSetting, level, message->levels)
		if (is_subscribed(level->name) &&
			(kind == DDL_OF_TABLES || strcmp(level->value, "all") == 0))
		return true;
	return false;
}
