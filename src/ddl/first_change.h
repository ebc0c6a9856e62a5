/*
 * first_change.h
 *	  Does a transaction publish a schema change in its node group before any row?
 */
#ifndef WEFT_FIRST_CHANGE_H
#define WEFT_FIRST_CHANGE_H

#include "nodes/pg_list.h"

extern void first_change_install(void);
extern void first_change_begin(void);
extern void first_change_published(const List *publications);
extern bool first_change_made(void);

#endif							/* WEFT_FIRST_CHANGE_H */
