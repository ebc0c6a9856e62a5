/*
 * damage.h
 *	  Damaged messages from the publisher.
 */
#ifndef WEFT_DAMAGE_H
#define WEFT_DAMAGE_H

#include "compat.h"

pg_noreturn extern void damage_report(const char *payload, const char *problem);
extern void damage_check_change(const char *payload, int length, bool streamed);

#endif							/* WEFT_DAMAGE_H */
