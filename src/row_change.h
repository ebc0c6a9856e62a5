/*
 * row_change.h
 *	  One change of a transaction, decoded once.
 *
 * A writer decodes each message when it reads it from the ring or from a spool.  Ordering,
 * coalescing, the fast path, conflict detection and the server's apply code share the
 * result, and a deferred change keeps it.
 *
 * It is small, since thousands of changes can be deferred.  Tuples are read where they
 * are, by whoever needs them.
 */
#ifndef WEFT_ROW_CHANGE_H
#define WEFT_ROW_CHANGE_H

#include "wire.h"

typedef struct RowChange
{
	char	   *message;		/* from its type byte on, as the server's code
								 * wants it */
	int			length;
	LogicalRepRelId relid;		/* valid if is_row */
	char		type;			/* a LogicalRepMsgType */
	char		old_kind;		/* 'K' key, 'O' all columns, 0 none */
	bool		is_row;			/* an INSERT, UPDATE or DELETE; otherwise the
								 * caller decodes the rest of the message */
} RowChange;

/* The tuples follow the type, the relation and the kind of the first tuple. */
#define ROW_CHANGE_TUPLES_OFFSET (1 + sizeof(LogicalRepRelId) + 1)

/* Returns a cursor that stands on the first tuple's column count. */
static inline WireCursor
row_change_tuples(const RowChange *change)
{
	WireCursor	cursor;

	wire_start(&cursor, change->message + ROW_CHANGE_TUPLES_OFFSET,
			   change->length - (int) ROW_CHANGE_TUPLES_OFFSET);
	return cursor;
}

extern RowChange row_change_read(const char *message, int length);

#endif							/* WEFT_ROW_CHANGE_H */
