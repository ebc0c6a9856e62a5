/*
 * settings.h
 *	  What the tables of schema weft say about conflicts, as this process knows it.
 */
#ifndef WEFT_SETTINGS_H
#define WEFT_SETTINGS_H

#include "access/transam.h"
#include "compat.h"
#include "conflict/resolver.h"
#include "conflict_kind.h"
#include "nodes/bitmapset.h"
#include "nodes/pg_list.h"
#include "replication/origin.h"
#include "utils/relcache.h"

typedef struct ConflictTables
{
	Oid			history;
	Oid			history_key;	/* its primary key */
	Oid			history_time_index;
	Oid			history_sequence;
	Oid			tombstone;
	Oid			tombstone_key;
	Oid			tombstone_time_index;
	Oid			merged_row;
	Oid			merged_row_key;
	Oid			merged_row_time_index;
	Oid			tombstone_open_index;	/* of those without a time */
	Oid			deleted_counter;
	Oid			deleted_counter_key;
	Oid			deleted_counter_time_index;
	Oid			past_origin;
	Oid			row_time;
	Oid			row_time_time_index;
} ConflictTables;

extern ConflictResolver settings_resolver(ConflictKind kind);
extern int	settings_own_node(void);
extern bool settings_find_node(RepOriginId origin, int *node);
extern int	settings_subscription_node(RepOriginId origin);
extern bool settings_find_past_node(RepOriginId origin, TransactionId xid, int *node);
extern const char *settings_subscription_of(int node);
extern char *settings_repair_origin_name(int node);
extern Bitmapset *settings_delta_columns(Relation rel);
extern List *settings_member_slots(void);
extern const ConflictTables *settings_tables(void);
extern bool conflict_has_delta_columns(Oid relid);

#endif							/* WEFT_SETTINGS_H */
