/*
 * leader.h
 *	  The leader: the server's apply worker, once Weft receives for it.
 */
#ifndef WEFT_LEADER_H
#define WEFT_LEADER_H

extern void leader_install(void);

#endif							/* WEFT_LEADER_H */
