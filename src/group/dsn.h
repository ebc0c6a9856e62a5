/*
 * dsn.h
 *	  Where the connection strings of members are kept.
 */
#ifndef WEFT_GROUP_DSN_H
#define WEFT_GROUP_DSN_H

extern void dsn_adopt(void);

#endif							/* WEFT_GROUP_DSN_H */
