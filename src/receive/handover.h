/*
 * handover.h
 *	  What the server's apply loop gets.
 */
#ifndef WEFT_HANDOVER_H
#define WEFT_HANDOVER_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"

extern void handover_start(void);

/* What the loop is to get once nothing is in flight. */
extern void handover_keep(char *message, int length);
extern void handover_keep_end(char *message, int length, XLogRecPtr end_lsn,
							  TimestampTz commit_time);
extern void handover_keep_second(char *message, int length, XLogRecPtr end_lsn,
								 TimestampTz commit_time);
extern void handover_turn_before(char *message, int length);
extern void handover_stream_end(void);

/* What the loop does not know yet. */
extern void handover_status(const char *data, int length);
extern bool handover_status_waiting(void);
extern void handover_settled(XLogRecPtr end_lsn);
extern void handover_news(void);

extern bool handover_waiting(void);
extern int	handover_take_back(char **message);
extern int	handover_deliver(char **buffer, pgsocket *wait_fd);
extern int	handover_deliver_nothing(char **buffer, pgsocket *wait_fd);
extern void handover_account(void);

extern void handover_turn_taken(void);
extern TimestampTz handover_last_turn(void);

#endif							/* WEFT_HANDOVER_H */
