/*
 * damage.h
 *	  Damaged messages from the publisher.
 */
#ifndef WEFT_DAMAGE_H
#define WEFT_DAMAGE_H

#include "access/xlogdefs.h"
#include "compat.h"

pg_noreturn extern void damage_report(const char *payload, const char *problem);
pg_noreturn extern void damage_report_text(char type, int column, XLogRecPtr final_lsn);
extern int	damage_check_change(const char *payload, int length, bool streamed);

#endif							/* WEFT_DAMAGE_H */
