/*
 * function_guard.h
 *	  Runs functions of other roles with their owners' rights.
 */
#ifndef WEFT_GROUP_FUNCTION_GUARD_H
#define WEFT_GROUP_FUNCTION_GUARD_H

extern void function_guard_install(void);
extern void function_guard_join(void);

#endif							/* WEFT_GROUP_FUNCTION_GUARD_H */
