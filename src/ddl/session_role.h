/*
 * session_role.h
 *	  SESSION_USER as a role in statements.
 */
#ifndef WEFT_SESSION_ROLE_H
#define WEFT_SESSION_ROLE_H

#include "nodes/nodes.h"

extern bool session_role_is_named(Node *statement);
extern void session_role_replace(Node *statement, const char *name);

#endif							/* WEFT_SESSION_ROLE_H */
