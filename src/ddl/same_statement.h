/*
 * same_statement.h
 *	  The same schema change of several members of a node group.
 */
#ifndef WEFT_SAME_STATEMENT_H
#define WEFT_SAME_STATEMENT_H

#include "ddl/ddl_message.h"

extern bool same_statement_made(const DdlMessage *message);
extern List *same_statement_unseen(const DdlMessage *message);

#endif							/* WEFT_SAME_STATEMENT_H */
