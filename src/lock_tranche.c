/*
 * lock_tranche.c
 *	  Tranches of lightweight locks for dynamic shared memory.
 *
 * All processes must use the same number for a tranche, so it is kept in the main shared
 * memory.
 */
#include "postgres.h"

#include "compat.h"
#include "lock_tranche.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

/* Asks for space in the main shared memory. */
void
lock_tranche_request(const char *name)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(int)));
}

/* Creates the tranche, or finds it, and returns its number. */
int
lock_tranche_startup(const char *name)
{
	bool		found;
	int		   *number;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	number = ShmemInitStruct(name, sizeof(int), &found);
	if (!found)
		*number = compat_new_tranche(name);
	LWLockRelease(AddinShmemInitLock);
	compat_register_tranche(*number, name);
	return *number;
}
