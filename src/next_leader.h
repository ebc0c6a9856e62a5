/*
 * next_leader.h
 *	  What a leader tells the next one of its subscription.
 */
#ifndef WEFT_NEXT_LEADER_H
#define WEFT_NEXT_LEADER_H

#include "access/xlogdefs.h"

extern void next_leader_request(void);
extern void next_leader_startup(void);
extern void next_leader_tell_wait(Oid subid, XLogRecPtr final_lsn);
extern XLogRecPtr next_leader_wait(Oid subid);
extern void next_leader_tell_unstreamed(Oid subid);
extern bool next_leader_take_unstreamed(Oid subid);
extern void next_leader_tell_sent(Oid subid, uint32 server, XLogRecPtr sent);
extern XLogRecPtr next_leader_sent(Oid subid, uint32 server);

#endif							/* WEFT_NEXT_LEADER_H */
