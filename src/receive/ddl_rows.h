/*
 * ddl_rows.h
 *	  Recognizes schema changes among the rows from the publisher.
 */
#ifndef WEFT_DDL_ROWS_H
#define WEFT_DDL_ROWS_H

#include "access/xlogdefs.h"
#include "compat.h"

/* What a message from the publisher has to do with schema changes. */
typedef enum DdlRow
{
	DDL_ROW_OTHER,				/* nothing */
	DDL_ROW_IGNORED,			/* it is about weft.ddl_queue, but no schema
								 * change */
	DDL_ROW_STATEMENT,			/* it is a schema change */
} DdlRow;

extern void ddl_rows_start(XLogRecPtr progress);
extern void ddl_rows_passed(XLogRecPtr lsn);
extern void ddl_rows_enter_loop(void);
extern void ddl_rows_leave_loop(void);
extern bool ddl_rows_wait(XLogRecPtr final_lsn, char *message, int length);
extern void ddl_rows_check_copies(XLogRecPtr final_lsn);
extern void ddl_rows_apply(const char *json, int length, XLogRecPtr final_lsn);
pg_noreturn extern void ddl_rows_stop_streaming(void);
pg_noreturn extern void ddl_rows_refuse_prepared(XLogRecPtr final_lsn);
extern bool ddl_rows_will_ask(const char *payload, int payload_length, bool streamed);
extern const char *ddl_rows_read(const char *payload, int payload_length, bool streamed,
								 DdlRow *kind, const char **json, int *length);

#endif							/* WEFT_DDL_ROWS_H */
