/*
 * schema_lock.h
 *	  Keeps the schema of a member of a node group as it is for a while.
 */
#ifndef WEFT_SCHEMA_LOCK_H
#define WEFT_SCHEMA_LOCK_H

extern void schema_lock_change(void);
extern void schema_lock_keep(void);

#endif							/* WEFT_SCHEMA_LOCK_H */
