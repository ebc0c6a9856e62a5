/*
 * fast_relation.c
 *	  The fast path: what is known of a relation, and kept open of its table.
 *
 * An entry is made when a relation is first met, and never removed.  fast_table.c fills it
 * in; an invalidation only marks it, since it may arrive while the table is in use.
 */
#include "postgres.h"

#include "fast/fast_relation.h"
#include "replication/worker_internal.h"
#include "utils/hsearch.h"
#include "utils/inval.h"

/* The relations that were met; a global for the invalidation callback. */
static HTAB *relations;

dlist_head	fast_relations_open = DLIST_STATIC_INIT(fast_relations_open);

/* Is a relation's description about a table? */
static bool
describes(const FastRelation *relation, Oid relid)
{
	if (relid == InvalidOid || relation->local_relid == relid)
		return true;
	return relation->partitioned &&
		(relation->partitions == NIL || list_member_oid(relation->partitions, relid));
}

/* A local table, or every one, has changed. */
static void
table_changed(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS scan;
	FastRelation *relation;

	hash_seq_init(&scan, relations);
	while ((relation = hash_seq_search(&scan)) != NULL)
	{
		if (!describes(relation, relid))
			continue;
		relation->valid = false;
		relation->changed = true;
	}
}

/* Called once in a writer. */
void
fast_relation_init(void)
{
	HASHCTL		info;

	info.keysize = sizeof(LogicalRepRelId);
	info.entrysize = sizeof(FastRelation);
	info.hcxt = ApplyContext;
	relations = hash_create("weft fast relations", 64, &info,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	CacheRegisterRelcacheCallback(table_changed, (Datum) 0);
}

/* Returns what is known of a relation, which may be nothing. */
FastRelation *
fast_relation_find(LogicalRepRelId relid)
{
	static FastRelation *latest = NULL;
	bool		known;

	/* Entries are never removed, so the pointer stays good. */
	if (latest == NULL || latest->remote_relid != relid)
	{
		latest = hash_search(relations, &relid, HASH_ENTER, &known);
		if (!known)
			memset((char *) latest + sizeof(relid), 0, sizeof(FastRelation) - sizeof(relid));
	}
	return latest;
}

/*
 * Is it known that the relation's changes, either its INSERTs or the others, take
 * the fast path?
 */
bool
fast_relation_known(const FastRelation *relation, bool insert)
{
	/*
	 * The decision about a row that can be in conflict with others depends on
	 * these.
	 */
	return relation->watched == NULL && relation->valid && relation->reason == NULL &&
		(insert ? relation->insert_reason : relation->key_reason) == NULL;
}
