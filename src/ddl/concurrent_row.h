/*
 * concurrent_row.h
 *	  The rows of weft.ddl_concurrent.
 */
#ifndef WEFT_CONCURRENT_ROW_H
#define WEFT_CONCURRENT_ROW_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "ddl/ddl_message.h"
#include "storage/itemptr.h"

typedef struct ConcurrentRow
{
	ItemPointerData place;
	Oid			subid;
	char	   *subname;		/* as it was when the row was stored */
	int64		id;
	XLogRecPtr	lsn;
	TimestampTz stored_at;
	bool		failed;			/* for good */
	int			attempts;		/* begun so far */
	TimestampTz retry_at;
	char	   *last_error;		/* or NULL */
	Oid			made;			/* the index that the latest attempt has begun
								 * to build, which may be gone; or InvalidOid */
	char	   *json;
} ConcurrentRow;

extern Oid	concurrent_table(void);
extern int	concurrent_compare(const ConcurrentRow *one, const ConcurrentRow *other);
extern List *concurrent_rows(Oid subid);
extern ConcurrentRow *concurrent_get(Oid subid, int64 id, bool failed);
extern DdlMessage *concurrent_message(const ConcurrentRow *row);
extern void concurrent_insert(const ConcurrentRow *row);
extern void concurrent_replace(const ConcurrentRow *row);
extern bool concurrent_remove(const ConcurrentRow *row);
extern void concurrent_forget(Oid subid);
extern void concurrent_find_owners(void);

#endif							/* WEFT_CONCURRENT_ROW_H */
