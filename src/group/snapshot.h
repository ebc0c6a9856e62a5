/*
 * snapshot.h
 *	  A snapshot of the member that is copied.
 */
#ifndef WEFT_GROUP_SNAPSHOT_H
#define WEFT_GROUP_SNAPSHOT_H

#include "group/remote.h"

/* Number of attempts. */
#define SNAPSHOT_ATTEMPTS 10

/* A snapshot of M, the member that is copied. */
typedef struct JoinSnapshot
{
	Remote	   *slot;			/* keeps the snapshot valid while it is open */
	char	   *name;			/* for SET TRANSACTION SNAPSHOT */
	char	   *position;		/* of the slot, where the snapshot is */
	Remote	   *schema;			/* keeps M's schema as the snapshot has it */
} JoinSnapshot;

extern void snapshot_take(JoinSnapshot *snapshot, const char *dsn, const char *node,
						  const char *slot);
extern void snapshot_pause(void);
extern void snapshot_give_up(JoinSnapshot *snapshot, const char *slot);
extern void snapshot_let_schema_go(JoinSnapshot *snapshot);

#endif							/* WEFT_GROUP_SNAPSHOT_H */
