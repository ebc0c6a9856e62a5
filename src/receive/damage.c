/*
 * damage.c
 *	  Damaged messages from the publisher.
 */
#include "postgres.h"

#include "compat.h"
#include "last_error.h"
#include "mb/pg_wchar.h"
#include "receive/damage.h"
#include "receive/leader_ring.h"
#include "receive/pause.h"
#include "receive/reception.h"
#include "replication/worker_internal.h"
#include "wire.h"

/*
 * Waits until all transactions before the current one have been applied.  Otherwise a publisher
 * that sends the same message again would keep the subscription from getting even that far.
 */
static void
finish_earlier(void)
{
	RingProducer *producer = &leader_ring.producer;

	if (producer->ring)
		pause_drain(producer->seq - (producer->open ? 1 : 0));
}

/* Ends the leader with an error because of a damaged message.  "payload" may be NULL. */
void
damage_report(const char *payload, const char *problem)
{
	finish_earlier();
	last_error_set_subject(reception.message_lsn);
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("invalid logical replication message for subscription \"%s\"",
					MySubscription->name),
			 errdetail("Message \"%s\" at LSN " compat_lsn_format ": %s.",
					   payload ? logicalrep_message_type((LogicalRepMsgType) (uint8) payload[0]) : "",
					   LSN_FORMAT_ARGS(reception.message_lsn), problem),
			 errhint("No change of this transaction has been applied. Check the publisher and the network between it and this server.")));
}

/*
 * Ends the leader with an error because of a value that is not valid text; says what a writer
 * says (apply/change.c).  The publisher stores such a value, so the transaction will not become
 * any better, and the LSN is the one that SKIP needs.
 */
void
damage_report_text(char type, int column, XLogRecPtr final_lsn)
{
	finish_earlier();
	last_error_set_subject(final_lsn);
	ereport(ERROR,
			(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
			 errmsg("invalid logical replication message for subscription \"%s\"",
					MySubscription->name),
			 errdetail("Message \"%s\" at LSN " compat_lsn_format ": the value of column %d is not valid in encoding \"%s\".",
					   logicalrep_message_type((LogicalRepMsgType) (uint8) type),
					   LSN_FORMAT_ARGS(final_lsn), column,
					   GetDatabaseEncodingName()),
			 errhint("Nothing of this transaction has been applied. Check the publisher's data and encoding.")));
}

/*
 * Checks the form of a change that the server's apply loop is going to read.  Returns the number
 * of a column whose value is not valid text, or 0.
 */
int
damage_check_change(const char *payload, int length, bool streamed)
{
	WireChange	change;
	WireCursor	relids;
	int			count;
	int			invalid = 0;
	const char *problem;

	if (payload[0] == LOGICAL_REP_MSG_TRUNCATE)
		problem = wire_read_truncate(payload, length, streamed, &count, &relids);
	else
	{
		problem = wire_read_change(payload, length, streamed, &change);
		if (problem == NULL)
		{
			WireCursor	tuples = change.tuples;

			problem = wire_check_tuples(&change, -1);
			if (problem == NULL)
				invalid = wire_invalid_text(tuples);
		}
	}
	if (problem)
		damage_report(payload, problem);
	return invalid;
}
