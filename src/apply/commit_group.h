/*
 * commit_group.h
 *	  Reads transactions from the ring, and commits them in groups.
 */
#ifndef WEFT_COMMIT_GROUP_H
#define WEFT_COMMIT_GROUP_H

extern void commit_group_attach(void);
extern void commit_group_apply(uint64 first, int count);

#endif							/* WEFT_COMMIT_GROUP_H */
