/*
 * concurrent_detach.h
 *	  DETACH PARTITION CONCURRENTLY.
 */
#ifndef WEFT_CONCURRENT_DETACH_H
#define WEFT_CONCURRENT_DETACH_H

#include "nodes/nodes.h"

extern bool concurrent_detach_must_be_plain(Node *statement);
extern void concurrent_detach_finalize(Node *statement);
extern void concurrent_detach_add_constraint(Node *statement);

#endif							/* WEFT_CONCURRENT_DETACH_H */
