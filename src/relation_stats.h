/*
 * relation_stats.h
 *	  Rows that were applied, and how, by subscription and relation.
 */
#ifndef WEFT_RELATION_STATS_H
#define WEFT_RELATION_STATS_H

#include "nodes/pg_list.h"
#include "shmem.h"

#define RELATION_REASON_LEN 160

typedef struct RelationCounts
{
	uint64		inserts;
	uint64		updates;
	uint64		deletes;
	uint64		general_rows;	/* those of them that took the general path */
	uint64		coalesced_rows; /* those that another update made needless */
} RelationCounts;

typedef struct RelationStats
{
	Oid			relid;			/* hash key: the local table */
	bool		general;		/* neither INSERTs nor others take the fast
								 * path */
	char		reason[RELATION_REASON_LEN];	/* empty: all take the fast
												 * path */
	RelationCounts counts;
} RelationStats;

extern void relation_stats_request(void);
extern void relation_stats_startup(void);
extern void relation_stats_create(SubscriptionShared *shared);
extern bool relation_stats_add(SubscriptionShared *shared, const RelationStats *stats,
							   bool up_to_date);
extern List *relation_stats_read(SubscriptionShared *shared, Oid *subid);

#endif							/* WEFT_RELATION_STATS_H */
