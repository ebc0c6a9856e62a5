/*
 * standby_slots.c
 *	  The slots of this server's standbys that weft.confirm_after_standby_slots names.
 *
 * The restart_lsn of a physical slot is what its standby has last reported as flushed.  It can
 * go back, when the standby restarts and reports what it has replayed; the standby still has the
 * rest.  Therefore, what was once seen here remains true, and callers keep the maximum.
 *
 * The rules are those of the server's synchronized_standby_slots, whose function looks only at
 * the slots of that parameter.
 */
#include "postgres.h"

#include "compat.h"
#include "replication/slot.h"
#include "standby_slots.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/guc_hooks.h"
#include "utils/varlena.h"

/* One behind the other, each with its null byte, and an empty one at the end; NULL: none. */
static const char *names = NULL;

/*
 * Sets *packed to the names as they are kept, or to NULL if none are given.  Returns false if there is no
 * memory for them: without them, nothing would be waited for.
 */
static bool
pack_names(const char *value, void **packed)
{
	char	   *copy = pstrdup(value);
	List	   *list = NIL;
	bool		named = SplitIdentifierString(copy, ',', &list) && list != NIL;

	*packed = named ? guc_malloc(LOG, strlen(value) + 2) : NULL;
	if (*packed != NULL)
	{
		char	   *end = *packed;

		foreach_ptr(char, name, list)
			end = stpcpy(end, name) + 1;
		*end = '\0';
	}
	list_free(list);
	pfree(copy);
	return !named || *packed != NULL;
}

/* Is this a list of names of slots?  They need not exist. */
bool
standby_slots_check(char **value, void **extra, GucSource source)
{
	void	   *of_server = NULL;
	bool		valid = check_synchronized_standby_slots(value, &of_server, source);

	guc_free(of_server);
	return valid && pack_names(*value, extra);
}

void
standby_slots_assign(const char *value, void *extra)
{
	names = extra;
}

/* Are any slots named? */
bool
standby_slots_named(void)
{
	return names != NULL;
}

/* Returns up to where one slot's standby has flushed the WAL, and what keeps it from more. */
static XLogRecPtr
flushed_by(const char *name, StandbySlotProblem *problem)
{
	ReplicationSlot *slot = SearchNamedReplicationSlot(name, false);
	XLogRecPtr	restart_lsn;
	bool		invalidated;
	bool		active;

	*problem = slot == NULL ? STANDBY_SLOT_MISSING : STANDBY_SLOT_LOGICAL;
	if (slot == NULL || SlotIsLogical(slot))
		return InvalidXLogRecPtr;
	SpinLockAcquire(&slot->mutex);
	restart_lsn = slot->data.restart_lsn;
	invalidated = slot->data.invalidated != RS_INVAL_NONE;
	active = compat_slot_is_active(slot);
	SpinLockRelease(&slot->mutex);
	*problem = invalidated ? STANDBY_SLOT_INVALIDATED :
		active ? STANDBY_SLOT_BEHIND : STANDBY_SLOT_INACTIVE;
	return invalidated ? InvalidXLogRecPtr : restart_lsn;
}

/*
 * Returns up to where all standbys have flushed this server's WAL, and the first slot that
 * lacks some of what is before "wanted".  Without any names, they have everything.
 */
XLogRecPtr
standby_slots_flushed(XLogRecPtr wanted, StandbySlotLack *lack)
{
	XLogRecPtr	result = PG_UINT64_MAX;

	lack->slot[0] = '\0';
	if (names == NULL)
		return result;
	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (const char *name = names; *name != '\0'; name += strlen(name) + 1)
	{
		StandbySlotProblem problem;
		XLogRecPtr	flushed = flushed_by(name, &problem);

		if (flushed < wanted && lack->slot[0] == '\0')
		{
			strlcpy(lack->slot, name, sizeof(lack->slot));
			lack->problem = problem;
		}
		result = Min(result, flushed);
	}
	LWLockRelease(ReplicationSlotControlLock);
	return result;
}
