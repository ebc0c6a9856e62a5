/*
 * named.h
 *	  Objects that a statement names, and that the server does not tell of.
 */
#ifndef WEFT_NAMED_H
#define WEFT_NAMED_H

#include "nodes/nodes.h"

extern void named_note(Node *statement);

#endif							/* WEFT_NAMED_H */
