/*
 * foreign_keys.h
 *	  Foreign keys of a schema that is copied.
 */
#ifndef WEFT_GROUP_FOREIGN_KEYS_H
#define WEFT_GROUP_FOREIGN_KEYS_H

#include "nodes/nodes.h"

extern bool foreign_keys_run(Node *statement, const char *text);

#endif							/* WEFT_GROUP_FOREIGN_KEYS_H */
