/*
 * cleanup.h
 *	  Removes old rows from the tables of schema weft.
 */
#ifndef WEFT_CLEANUP_H
#define WEFT_CLEANUP_H

extern void cleanup_sometimes(void);
extern long conflict_clean(void);

#endif							/* WEFT_CLEANUP_H */
