/*
 * node_identity.h
 *	  Who this node is in its group.
 */
#ifndef WEFT_NODE_IDENTITY_H
#define WEFT_NODE_IDENTITY_H

extern char *node_identity_for(const char *subscription);

#endif							/* WEFT_NODE_IDENTITY_H */
