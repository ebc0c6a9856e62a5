/*
 * row_change.c
 *	  One change of a transaction, decoded once.
 */
#include "postgres.h"

#include "row_change.h"

/*
 * Decodes a message of a transaction that is not streamed, or from which the spool has
 * removed the subtransaction's ID.  The leader has checked its form, so damage here
 * means that the ring or the spool is broken.
 */
RowChange
row_change_read(const char *message, int length)
{
	RowChange	result = {unconstify(char *, message), length};
	WireChange	change;
	const char *problem;

	result.type = message[0];
	switch (result.type)
	{
		case LOGICAL_REP_MSG_INSERT:
		case LOGICAL_REP_MSG_UPDATE:
		case LOGICAL_REP_MSG_DELETE:
			problem = wire_read_change(message, length, false, &change);
			if (problem)
				elog(ERROR, "broken message in the ring or a spool: %s", problem);
			Assert(change.tuples.next == message + ROW_CHANGE_TUPLES_OFFSET);
			result.relid = change.relid;
			result.old_kind = change.old_kind;
			result.is_row = true;
			break;
	}
	return result;
}
