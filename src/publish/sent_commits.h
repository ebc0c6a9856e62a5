/*
 * sent_commits.h
 *	  The transactions that were sent last through each slot.
 */
#ifndef WEFT_SENT_COMMITS_H
#define WEFT_SENT_COMMITS_H

#include "access/xlogdefs.h"

extern void sent_commits_request(void);
extern void sent_commits_startup(void);
extern void sent_commits_note(XLogRecPtr end);

#endif							/* WEFT_SENT_COMMITS_H */
