/*
 * damage.c
 *	  Damaged messages from the publisher.
 */
#include "postgres.h"

#include "last_error.h"
#include "receive/damage.h"
#include "receive/leader_ring.h"
#include "receive/pause.h"
#include "receive/reception.h"
#include "replication/worker_internal.h"
#include "wire.h"

/*
 * Ends the leader with an error because of a damaged message, once all transactions
 * before it have been applied.  Otherwise a publisher that sends the same message again
 * would keep the subscription from getting even that far.  "payload" may be NULL.
 */
void
damage_report(const char *payload, const char *problem)
{
	RingProducer *producer = &leader_ring.producer;

	if (producer->ring)
		pause_drain(producer->seq - (producer->open ? 1 : 0));

	last_error_set_subject(reception.message_lsn);
	ereport(ERROR,
			(errcode(ERRCODE_PROTOCOL_VIOLATION),
			 errmsg("invalid logical replication message for subscription \"%s\"",
					MySubscription->name),
			 errdetail("Message \"%s\" at LSN %X/%X: %s.",
					   payload ? logicalrep_message_type((LogicalRepMsgType) (uint8) payload[0]) : "",
					   LSN_FORMAT_ARGS(reception.message_lsn), problem),
			 errhint("No change of this transaction has been applied. Check the publisher and the network between it and this server.")));
}

/* Checks a change that the server's apply loop is going to read. */
void
damage_check_change(const char *payload, int length, bool streamed)
{
	WireChange	change;
	WireCursor	relids;
	int			count;
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
			if (problem == NULL && wire_invalid_text(tuples) != 0)
				problem = "a value is not valid in the encoding of the database";
		}
	}
	if (problem)
		damage_report(payload, problem);
}
