/*
 * never_notice.h
 *	  Says what is never replicated, where somebody might expect it.
 */
#ifndef WEFT_NEVER_NOTICE_H
#define WEFT_NEVER_NOTICE_H

#include "nodes/nodes.h"

extern void never_notice(Node *statement);
extern void never_notice_tablespace(Node *statement);
extern void never_notice_unlogged(void);

#endif							/* WEFT_NEVER_NOTICE_H */
