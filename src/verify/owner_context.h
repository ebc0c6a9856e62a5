/*
 * owner_context.h
 *	  Reads tables of this database as the owner of a subscription.
 */
#ifndef WEFT_VERIFY_OWNER_CONTEXT_H
#define WEFT_VERIFY_OWNER_CONTEXT_H

#include "utils/usercontext.h"

/* What was in force before. */
typedef struct OwnerContext
{
	Oid			user;
	int			security;
	int			level;
} OwnerContext;

extern void owner_context_enter(OwnerContext *context, Oid owner);
extern void owner_context_leave(const OwnerContext *context);
extern void owner_context_enter_table(UserContext *context, Oid relid, bool run_as_owner);
extern void owner_context_leave_table(UserContext *context, bool run_as_owner);

#endif							/* WEFT_VERIFY_OWNER_CONTEXT_H */
