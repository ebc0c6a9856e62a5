/*
 * copied_tables.h
 *	  Locks the tables of the member that is copied.
 */
#ifndef WEFT_COPIED_TABLES_H
#define WEFT_COPIED_TABLES_H

#include "group/remote.h"

extern char *copied_tables_lock(Remote *source, Remote *now);
extern bool copied_name_same(Remote *source, const char *schema, const char *name);
extern bool copied_tables_same(Remote *source, const char *schema, const char *table);

#endif							/* WEFT_COPIED_TABLES_H */
