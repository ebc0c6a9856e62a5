/*
 * local_object.h
 *	  Objects that depend on temporary or unlogged ones.
 */
#ifndef WEFT_LOCAL_OBJECT_H
#define WEFT_LOCAL_OBJECT_H

#include "nodes/parsenodes.h"

/* For local_object_reason(): an object with all of its columns. */
#define LOCAL_ALL_COLUMNS (-1)

/* Why subscribers cannot have an object. */
typedef enum LocalReason
{
	LOCAL_NOT,					/* they can */
	LOCAL_TEMPORARY,
	LOCAL_UNLOGGED,
} LocalReason;

extern char local_object_persistence(Oid relid);
extern LocalReason local_object_reason(Oid class_id, Oid object_id, int sub_id);
extern bool local_object_is_partition(Node *statement);
extern RangeVar *local_object_like(Node *statement);
extern bool local_object_creates_temporary(Node *statement);
extern const char *local_object_name(LocalReason reason);

#endif							/* WEFT_LOCAL_OBJECT_H */
