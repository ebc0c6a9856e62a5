/*
 * ddl_conflict.h
 *	  Schema changes of several members of a node group that have no order.
 */
#ifndef WEFT_DDL_CONFLICT_H
#define WEFT_DDL_CONFLICT_H

#include "ddl/ddl_message.h"

extern bool ddl_conflict_check(const DdlMessage *message);
extern void ddl_conflict_check_again(const DdlMessage *message);

#endif							/* WEFT_DDL_CONFLICT_H */
