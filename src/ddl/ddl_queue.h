/*
 * ddl_queue.h
 *	  Weft's own tables about schema changes.
 */
#ifndef WEFT_DDL_QUEUE_H
#define WEFT_DDL_QUEUE_H

#include "access/xlogdefs.h"
#include "compat.h"
#include "ddl/ddl_message.h"
#include "replication/origin.h"

extern void ddl_queue_install(void);
extern bool ddl_queue_has_origin(void);
extern void ddl_queue_set_origin(RepOriginId own_origin);
extern void ddl_queue_insert(DdlMessage *message);
extern void ddl_queue_record_with(const char *subscription, const DdlMessage *message,
								  XLogRecPtr lsn, const char *result, const char *detail);
extern void ddl_queue_record_skipped(const char *subscription, const DdlMessage *message,
									 XLogRecPtr lsn, const char *user);
extern void ddl_queue_record_failure(const char *subscription, const DdlMessage *message,
									 XLogRecPtr lsn, const char *problem);
extern bool ddl_queue_has_failed(const char *subscription, int64 id);
extern List *ddl_queue_skipped(const List *subids, const char *tag);

#endif							/* WEFT_DDL_QUEUE_H */
