/*
 * expression.h
 *	  Would an expression have the same value on another server?
 */
#ifndef WEFT_EXPRESSION_H
#define WEFT_EXPRESSION_H

#include "nodes/nodes.h"

extern bool expression_varies_by_row(Node *expression);
extern bool expression_is_mutable(Node *expression);
extern bool expression_depends_on_server(Node *expression);

#endif							/* WEFT_EXPRESSION_H */
