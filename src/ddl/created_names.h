/*
 * created_names.h
 *	  Names that the server chooses for what a statement creates.
 */
#ifndef WEFT_CREATED_NAMES_H
#define WEFT_CREATED_NAMES_H

#include "nodes/pg_list.h"

extern List *created_names_list(const List *relations, const List *constraints);
extern void created_names_begin(void);
extern void created_names_end(void);
extern void created_names_settle(const List *names);
extern void created_names_install(void);

#endif							/* WEFT_CREATED_NAMES_H */
