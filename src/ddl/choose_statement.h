/*
 * choose_statement.h
 *	  Schema changes that an event trigger has captured.
 */
#ifndef WEFT_CHOOSE_STATEMENT_H
#define WEFT_CHOOSE_STATEMENT_H

#include "ddl/ddl_message.h"
#include "nodes/nodes.h"

extern bool choose_statement(const DdlMessage *message, Node *statement,
							 bool (*is_subscribed) (const char *publication));

#endif							/* WEFT_CHOOSE_STATEMENT_H */
