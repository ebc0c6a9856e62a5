/*
 * filter.h
 *	  weft.ddl_filter: which schema changes are not published.
 */
#ifndef WEFT_FILTER_H
#define WEFT_FILTER_H

#include "nodes/nodes.h"

extern void filter_define(void);
extern bool filter_excludes_kind(Node *statement);
extern bool filter_excludes_schema(Oid schema);

#endif							/* WEFT_FILTER_H */
