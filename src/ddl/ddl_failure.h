/*
 * ddl_failure.h
 *	  Remembers a schema change that has failed until that can be recorded.
 */
#ifndef WEFT_DDL_FAILURE_H
#define WEFT_DDL_FAILURE_H

#include "access/xlogdefs.h"
#include "ddl/ddl_message.h"

extern void ddl_failure_note(const DdlMessage *message, XLogRecPtr lsn, const char *problem);
extern void ddl_failure_forget(void);
extern void ddl_failure_record(void);

#endif							/* WEFT_DDL_FAILURE_H */
