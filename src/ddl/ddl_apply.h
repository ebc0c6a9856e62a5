/*
 * ddl_apply.h
 *	  Executes schema changes of a publisher.
 */
#ifndef WEFT_DDL_APPLY_H
#define WEFT_DDL_APPLY_H

#include "access/xlogdefs.h"

extern void ddl_apply(const char *json, int length, XLogRecPtr final_lsn);

#endif							/* WEFT_DDL_APPLY_H */
