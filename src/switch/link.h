/*
 * link.h
 *	  The session on the other server that a switch-over uses, and the locks of both sides.
 */
#ifndef WEFT_SWITCH_LINK_H
#define WEFT_SWITCH_LINK_H

#include "catalog/pg_subscription.h"
#include "remote_query.h"
#include "utils/timestamp.h"

/* The keys of the advisory lock (of two integers) that a switch-over holds on both sides. */
#define SWITCH_LOCK_CLASS 0x77656674
#define SWITCH_LOCK_OBJECT 0x73776974

/* How long that session may be idle, in ms, before writes pause. */
#define SESSION_IDLE_LIMIT 60000

extern bool link_lock_here(void);
extern char *link_lock_holder_query(void);
extern void link_open(const Subscription *subscription, const char *connection,
					  TimestampTz deadline);
extern void link_close(void);
extern void link_close_all(void);
extern bool link_is_open(void);
extern bool link_holds_lock_here(void);
extern WalReceiverConn *link_connection(void);
extern int	link_version(void);
extern void link_run(const char *command);
extern char *link_value(const char *query);
extern char *link_slot_value(const char *query);
extern List *link_rows(const char *query, int columns);
extern void link_send(const char *copy, const char *line);
extern char *link_read_copy(WalReceiverConn *conn);
extern void link_ping(void);
extern void link_limit_idleness(int64 limit);

#endif							/* WEFT_SWITCH_LINK_H */
