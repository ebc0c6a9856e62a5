/*
 * group_lock.h
 *	  The lock of a node group for a schema change: the session that makes the change.
 */
#ifndef WEFT_GROUP_LOCK_H
#define WEFT_GROUP_LOCK_H

extern void group_lock_install(void);

#endif							/* WEFT_GROUP_LOCK_H */
