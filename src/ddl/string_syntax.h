/*
 * string_syntax.h
 *	  The setting under which the text of a statement was parsed.
 */
#ifndef WEFT_STRING_SYNTAX_H
#define WEFT_STRING_SYNTAX_H

#include "nodes/nodes.h"
#include "nodes/pg_list.h"

extern List *string_syntax_parse(const char *text, Node *statement, List *settings);

#endif							/* WEFT_STRING_SYNTAX_H */
