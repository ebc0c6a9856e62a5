/*
 * concurrent_detach.h
 *	  DETACH PARTITION CONCURRENTLY.
 */
#ifndef WEFT_CONCURRENT_DETACH_H
#define WEFT_CONCURRENT_DETACH_H

#include "nodes/nodes.h"

extern bool concurrent_detach_must_be_plain(Node *statement, int server_version);
extern void concurrent_detach_finalize(Node *statement);
extern void concurrent_detach_add_constraint(Node *statement, int server_version);

#endif							/* WEFT_CONCURRENT_DETACH_H */
