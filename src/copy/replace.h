/*
 * replace.h
 *	  Copies a table again whose rows are already there.
 */
#ifndef WEFT_COPY_REPLACE_H
#define WEFT_COPY_REPLACE_H

#include "utils/rel.h"

/* For weft.resync_table(); its transaction holds AccessExclusiveLock on pg_subscription_rel. */
extern void replace_request(Oid subid, Oid relid);
extern void replace_clean(void);
extern const char *replace_obstacle(Relation rel, Oid owner);

/* The steps of a table synchronization worker, in this order; without a request, no-ops. */
extern void replace_check_request(void);
extern void replace_delete_rows(void);
extern bool replace_in_progress(void);
extern void replace_copied(void);

#endif							/* WEFT_COPY_REPLACE_H */
