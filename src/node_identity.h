/*
 * node_identity.h
 *	  Who this node is in its group.
 */
#ifndef WEFT_NODE_IDENTITY_H
#define WEFT_NODE_IDENTITY_H

#include "nodes/pg_list.h"
#include "utils/relcache.h"

/* Another member of this node's group. */
typedef struct NodeMember
{
	char	   *name;
	char	   *subscription;	/* of this node to it, which need not exist */
	char	   *copied;			/* where this node was copied from it, a
								 * position in its WAL as text; or NULL */
} NodeMember;

extern Relation node_identity_table(const char *name);
extern char *node_identity_for(const char *subscription);
extern char *node_identity_publication(Oid *member_table);
extern List *node_identity_members(void);
extern char *node_identity_name(void);
extern char *node_identity_start(char **of_source);
extern List *node_identity_subscriptions(void);

#endif							/* WEFT_NODE_IDENTITY_H */
