/*
 * refuse.h
 *	  Refuses statements that a subscriber could not repeat.
 */
#ifndef WEFT_REFUSE_H
#define WEFT_REFUSE_H

#include "nodes/nodes.h"

extern void refuse_unreplayable(Node *statement);

#endif							/* WEFT_REFUSE_H */
