/*
 * drop_known.h
 *	  DROP ... IF EXISTS of several objects, of which some do not exist.
 */
#ifndef WEFT_DROP_KNOWN_H
#define WEFT_DROP_KNOWN_H

#include "nodes/parsenodes.h"

extern void drop_known(DropStmt *statement, const List *changes);

#endif							/* WEFT_DROP_KNOWN_H */
