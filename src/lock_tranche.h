/*
 * lock_tranche.h
 *	  Tranches of lightweight locks for dynamic shared memory.
 */
#ifndef WEFT_LOCK_TRANCHE_H
#define WEFT_LOCK_TRANCHE_H

extern void lock_tranche_request(const char *name);
extern int	lock_tranche_startup(const char *name);

#endif							/* WEFT_LOCK_TRANCHE_H */
