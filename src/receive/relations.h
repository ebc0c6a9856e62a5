/*
 * relations.h
 *	  What the leader knows of the publisher's relations.
 */
#ifndef WEFT_RELATIONS_H
#define WEFT_RELATIONS_H

#include "replication/logicalproto.h"

typedef enum RelationClass
{
	RELATION_UNKNOWN,			/* to be found out */
	RELATION_PARALLEL,			/* a change has no effect beyond its row */
	RELATION_EXCLUSIVE,			/* a change runs alone */
	RELATION_BEING_COPIED,		/* a change is not applied */
} RelationClass;

typedef struct LeaderRelation
{
	LogicalRepRelId relid;		/* hash key */

	/* The RELATION message, as it came. */
	char	   *message;
	int			message_length;
	uint64		version;		/* counts them */

	int			natts;
	bool		full;			/* replica identity full */
	int			num_keys;
	int16	   *keys;			/* columns of the replica identity, ascending */
	uint64		seed;			/* of the hash of a key */

	/*
	 * Changes depend on this seq at least: what came before the latest
	 * RELATION message may have named the same rows differently.
	 */
	uint64		floor;

	/*
	 * For rows that cannot be told apart by what was sent of them: the latest
	 * transaction with such a change, and with any change.
	 */
	uint64		last_wide;
	uint64		last_any;
	uint64		last_other;		/* with any change, before last_any */

	RelationClass class;
	Oid			localreloid;	/* as of the time it was classified */
	bool		partitioned;	/* so other relations' changes matter too */
} LeaderRelation;

extern void relations_init(void);
extern void relations_message(const char *message, int length);
extern void relations_tell_server(const char *message, int length);
extern LeaderRelation *relations_find(LogicalRepRelId relid);
extern RelationClass relations_class(LeaderRelation *relation);
extern void relations_broadcast_all(void);

#endif							/* WEFT_RELATIONS_H */
