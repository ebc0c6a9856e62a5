/*
 * ddl_apply.h
 *	  Executes schema changes of a publisher.
 */
#ifndef WEFT_DDL_APPLY_H
#define WEFT_DDL_APPLY_H

#include "access/xlogdefs.h"
#include "ddl/ddl_message.h"
#include "nodes/parsenodes.h"

/* The first character of a message that is not to be executed, because the publisher's table is no longer there. */
#define DDL_APPLY_LOST '!'

extern Oid	ddl_apply_role(const DdlMessage *message);
extern RawStmt *ddl_apply_parse(const DdlMessage *message);
extern void ddl_apply(const char *json, int length, XLogRecPtr final_lsn);

#endif							/* WEFT_DDL_APPLY_H */
