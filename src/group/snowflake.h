/*
 * snowflake.h
 *	  Numbers that are unique in a node group.
 */
#ifndef WEFT_SNOWFLAKE_H
#define WEFT_SNOWFLAKE_H

extern void snowflake_request(void);
extern void snowflake_startup(void);

#endif							/* WEFT_SNOWFLAKE_H */
