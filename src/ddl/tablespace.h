/*
 * tablespace.h
 *	  Removes tablespaces from statements.
 */
#ifndef WEFT_TABLESPACE_H
#define WEFT_TABLESPACE_H

#include "nodes/nodes.h"

extern bool tablespace_forget(Node *statement);

#endif							/* WEFT_TABLESPACE_H */
