/*
 * join.h
 *	  How a node joins a group.
 */
#ifndef WEFT_JOIN_H
#define WEFT_JOIN_H

#include "group/remote.h"
#include "lib/stringinfo.h"
#include "nodes/nodes.h"

/* Where M, the member that is copied, stood when it was. */
typedef struct JoinSnapshot
{
	Remote	   *slot;			/* keeps the snapshot valid while it is open */
	char	   *name;			/* for SET TRANSACTION SNAPSHOT */
} JoinSnapshot;

/* snapshot.c */
extern void snapshot_take(JoinSnapshot *snapshot, const char *dsn, const char *node,
						  const char *slot);

/* schema.c */
extern char *schema_dump(const char *dsn, const char *node, const char *snapshot,
						 const char *section);
extern void schema_run(const char *script);

/* function_guard.c */
extern void guard_functions(void);

/* foreign_keys.c */
extern bool foreign_key_run(Node *statement, const char *text);

/* data.c */
extern void data_open(const char *dsn, const char *node, const char *snapshot);
extern void data_copy(void);
extern void data_copy_recent(void);
extern void data_close(void);

/* recent.c */
extern void recent_stamp(void);

/* recent_rows.c */
extern void recent_rows_stamp(Oid relid, List *keys);

/* local.c */

/* A value of a row, as text; NULL if it is null. */
typedef char *LocalValue;

extern void local_run(const char *command);
extern char *local_value(const char *query);
extern List *local_rows(const char *query, int columns);

#endif							/* WEFT_JOIN_H */
