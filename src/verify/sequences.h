/*
 * sequences.h
 *	  Sets the subscriber's sequences at or beyond the publisher's.
 */
#ifndef WEFT_VERIFY_SEQUENCES_H
#define WEFT_VERIFY_SEQUENCES_H

#include "catalog/pg_subscription.h"
#include "nodes/pg_list.h"
#include "replication/walreceiver.h"

/* One sequence of the publisher, and the one of the same name here. */
typedef struct SequenceState
{
	char	   *schema;			/* as on the publisher */
	char	   *name;
	Oid			relid;			/* the sequence here, or InvalidOid */
	bool		has_publisher_value;
	int64		publisher_value;	/* its last_value */
	bool		has_value;		/* are the following two known? */
	int64		before;			/* last_value here */
	int64		after;			/* the same, or what it was set to */
	bool		behind;			/* a value that the publisher has used may be
								 * made here again */
	bool		settable;		/* that is all, and setting it mends it */
	const char *problem;		/* NULL if there is none */
	const char *remedy;			/* SQL; NULL if there is none */
} SequenceState;

/*
 * Looks at the sequences of a subscription, and sets those that are behind if "set".
 *
 * "conn" is an ordinary connection to the publisher, on which the query settings of
 * publisher_connect() are in force.  It may be inside a transaction.  "margin" is the
 * number of steps by which a sequence here should be ahead; 0 suffices if nothing can take
 * numbers on the publisher any more.  Acts as the owner of the subscription.
 *
 * Returns a list of SequenceState in the order of their names, and in *safe, which may be
 * NULL, whether none is behind after this.  What concerns one sequence only - it does not
 * exist here, a right is missing - is its problem, and no error.  Fails if the publisher
 * does not answer, and if "set" and this server or transaction is read-only.
 *
 * Values that have been set are not rolled back (as with setval()), except for sequences
 * with CACHE, where numbers that sessions have cached must be discarded, too.
 */
extern List *sequences_sync(Subscription *subscription, WalReceiverConn *conn,
							int64 margin, bool set, bool *safe);

#endif							/* WEFT_VERIFY_SEQUENCES_H */
