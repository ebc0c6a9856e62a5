/*
 * concurrent.h
 *	  Schema changes that are executed outside of the stream.
 */
#ifndef WEFT_CONCURRENT_H
#define WEFT_CONCURRENT_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "ddl/ddl_message.h"
#include "nodes/nodes.h"
#include "storage/itemptr.h"

/* How many times a statement is tried. */
#define CONCURRENT_ATTEMPTS 3

/* A row of weft.ddl_concurrent. */
typedef struct ConcurrentRow
{
	ItemPointerData place;
	Oid			subid;
	int64		id;
	XLogRecPtr	lsn;
	TimestampTz stored_at;
	bool		failed;			/* for good */
	int			attempts;		/* begun so far */
	TimestampTz retry_at;
	char	   *last_error;		/* or NULL */
	char	   *json;
} ConcurrentRow;

/* What a background worker is started with. */
typedef struct ConcurrentTask
{
	Oid			database;
	Oid			role;
	Oid			subid;
	int64		id;
} ConcurrentTask;

typedef enum ConcurrentChoice
{
	CONCURRENT_NONE,			/* no statement is waiting */
	CONCURRENT_LATER,			/* one is, or is being executed */
	CONCURRENT_TAKEN,
} ConcurrentChoice;

/* Executes a statement in the current transaction, as its role. */
typedef void (*ConcurrentExecute) (const DdlMessage *message);

extern bool concurrent_store(const DdlMessage *message, const char *json, int length,
							 XLogRecPtr lsn);
extern void concurrent_finish(const DdlMessage *later, ConcurrentExecute execute);
extern ConcurrentChoice concurrent_take(Oid subid, ConcurrentTask *task);
extern void concurrent_taken(const ConcurrentTask *task);
extern void concurrent_forget_others(void);

/* For the worker. */
extern bool concurrent_lock(Oid subid, bool session, bool wait);
extern ConcurrentRow *concurrent_get(Oid subid, int64 id);
extern DdlMessage *concurrent_message(const ConcurrentRow *row);
extern void concurrent_replace(const ConcurrentRow *row);
extern void concurrent_remove(const ConcurrentRow *row);
extern void concurrent_set_mode(Node *statement, bool concurrent);
extern char *concurrent_leftover(Node *statement, Oid role);

#endif							/* WEFT_CONCURRENT_H */
