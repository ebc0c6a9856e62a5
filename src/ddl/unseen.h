/*
 * unseen.h
 *	  The schema changes that were executed here, and that another one has not seen.
 */
#ifndef WEFT_UNSEEN_H
#define WEFT_UNSEEN_H

#include "ddl/ddl_message.h"

typedef struct Unseen
{
	DdlMessage *message;
	bool		repeated;		/* the other member has made the same one
								 * since, before */
} Unseen;

extern List *unseen_of(const DdlMessage *message);

#endif							/* WEFT_UNSEEN_H */
