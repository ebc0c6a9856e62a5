/*
 * pending.h
 *	  Schema changes that are published when the statements that have caused them have succeeded.
 */
#ifndef WEFT_PENDING_H
#define WEFT_PENDING_H

#include "access/xact.h"
#include "ddl/ddl_message.h"

/* A list of them has this type of elements. */
typedef struct Pending
{
	SubTransactionId transaction;	/* that has made it */
	SubTransactionId written;	/* that has published it before, if any */
	DdlMessage *message;
} Pending;

extern List *pending_make(List *messages);
extern void pending_write(List *pending);
extern bool pending_any_written(List *pending);
extern bool pending_same(List *pending, List *others);
extern void pending_note_end(List *pending, SubXactEvent event, SubTransactionId transaction,
							 SubTransactionId parent);
extern List *pending_remove(List *pending, SubTransactionId transaction);

#endif							/* WEFT_PENDING_H */
