/*
 * ddl_skip.h
 *	  Schema changes that users have applied by hand.
 */
#ifndef WEFT_DDL_SKIP_H
#define WEFT_DDL_SKIP_H

extern char *ddl_skip_take(Oid subid, int64 id);
extern void ddl_skip_install(void);

#endif							/* WEFT_DDL_SKIP_H */
