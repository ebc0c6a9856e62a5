/*
 * decode_ahead.h
 *	  Decodes a stretch of WAL in one go.
 */
#ifndef WEFT_DECODE_AHEAD_H
#define WEFT_DECODE_AHEAD_H

#include "access/xlogreader.h"
#include "replication/logical.h"

/* How long a stretch may be. */
typedef enum StretchAllowed
{
	STRETCH_NONE,
	STRETCH_BRIEF,				/* sessions may wait for replies */
	STRETCH_LONG,
} StretchAllowed;

extern void decode_ahead_start(LogicalDecodingContext *context, XLogPageReadCB read_page,
							   StretchAllowed (*ask) (void));
extern bool decode_ahead(XLogRecPtr record, XLogRecPtr limit, XLogRecPtr end);

#endif							/* WEFT_DECODE_AHEAD_H */
