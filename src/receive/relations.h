/*
 * relations.h
 *	  What the leader knows about the publisher's relations.
 */
#ifndef WEFT_RELATIONS_H
#define WEFT_RELATIONS_H

#include "replication/logicalproto.h"
#include "ring/broadcast.h"

typedef enum RelationClass
{
	RELATION_UNKNOWN,			/* to be determined */
	RELATION_PARALLEL,			/* a change has no effect beyond its row */
	RELATION_EXCLUSIVE,			/* its transaction runs alone from a change on */
	RELATION_BEING_COPIED,		/* a change is dropped: the table
								 * synchronization worker applies it */
} RelationClass;

typedef struct LeaderRelation
{
	LogicalRepRelId relid;		/* hash key */

	/* The latest RELATION message, unchanged. */
	char	   *message;
	int			message_length;
	uint64		version;		/* number of such messages so far */

	int			natts;
	bool		full;			/* replica identity full */
	int			num_keys;
	int16	   *keys;			/* columns of the replica identity, ascending */
	uint64		seed;			/* of the hash of a key */

	/*
	 * Changes depend on this seq at least: changes that came before the
	 * latest RELATION message may have named the same rows differently.
	 */
	uint64		floor;

	/*
	 * For wide changes (dependency.c), which cannot tell their row from
	 * others: the newest transaction with such a change, and with any change.
	 */
	uint64		last_wide;
	uint64		last_any;
	uint64		last_other;		/* the newest one with any change before
								 * last_any */

	RelationClass class;
	Oid			localreloid;	/* when it was classified */
	bool		partitioned;	/* so changes of its partitions' definitions
								 * matter, too */
} LeaderRelation;

extern void relations_init(MemoryContext context);
extern const char *relations_take_in(const char *message, int length, uint64 floor,
									 bool *changed);
extern void relations_tell_server(const char *message, int length);
extern LeaderRelation *relations_find(LogicalRepRelId relid);
extern RelationClass relations_class(LeaderRelation *relation);
extern void relations_renew(BroadcastLog *log);

#endif							/* WEFT_RELATIONS_H */
