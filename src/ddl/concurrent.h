/*
 * concurrent.h
 *	  Schema changes that are executed outside of the stream.
 */
#ifndef WEFT_CONCURRENT_H
#define WEFT_CONCURRENT_H

#include "ddl/concurrent_row.h"
#include "nodes/nodes.h"
#include "storage/lock.h"

/* How many times a statement is tried. */
#define CONCURRENT_ATTEMPTS 3

/* What the history says of an index that did not have to be built. */
#define CONCURRENT_EXISTS "it existed already"

/* A writer waits for a worker's lock in this mode if the worker is not to keep it waiting for others. */
#define CONCURRENT_IMPATIENT AccessExclusiveLock

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

/*
 * Executes a statement in the current transaction, as its role, after an attempt that has begun to build an
 * index.  Returns false if its index exists already.
 */
typedef bool (*ConcurrentExecute) (const DdlMessage *message, Oid made);

extern bool concurrent_store(const DdlMessage *message, const char *json, int length,
							 XLogRecPtr lsn);
extern void concurrent_finish(DdlMessage *later, ConcurrentExecute execute);
extern void concurrent_allow_missing(DdlMessage *later);
extern char *concurrent_missing(const DdlMessage *later);
extern void concurrent_forget_dropped(const DdlMessage *later);
extern ConcurrentChoice concurrent_take(Oid subid, ConcurrentTask *task);
extern void concurrent_taken(const ConcurrentTask *task);

/* For the worker. */
extern void concurrent_lock_tag(Oid subid, LOCKTAG *tag);
extern bool concurrent_lock(Oid subid, bool session, bool wait);
extern void concurrent_set_mode(Node *statement, bool concurrent);
extern void concurrent_fail(ConcurrentRow *row, const char *subscription, const char *problem);

/* For users. */
extern bool concurrent_retry(Oid subid, int64 id);
extern bool concurrent_give_up(Oid subid, const char *subscription, int64 id, const char *user);

#endif							/* WEFT_CONCURRENT_H */
