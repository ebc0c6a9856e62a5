/*
 * ddl_tables.h
 *	  Which tables belong to the subscription after a schema change.
 */
#ifndef WEFT_DDL_TABLES_H
#define WEFT_DDL_TABLES_H

#include "access/xlogdefs.h"
#include "ddl/ddl_message.h"

extern bool ddl_tables_is_subscribed(const char *publication);
extern bool ddl_tables_any_subscribed(const List *publications);
extern List *ddl_tables_parts(const DdlMessage *message, XLogRecPtr final_lsn);
extern void ddl_tables_settle(const DdlMessage *message, XLogRecPtr final_lsn, bool by_hand,
							  List *parts);

#endif							/* WEFT_DDL_TABLES_H */
