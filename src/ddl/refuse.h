/*
 * refuse.h
 *	  Refuses statements that a subscriber could not repeat.
 */
#ifndef WEFT_REFUSE_H
#define WEFT_REFUSE_H

#include "nodes/parsenodes.h"

extern void refuse_repack(Node *statement);
extern void refuse_unreplayable(Node *statement, const char *source, List **values);

#endif							/* WEFT_REFUSE_H */
