/*
 * server_copy.h
 *	  Physical copies of a member of a node group.
 */
#ifndef WEFT_SERVER_COPY_H
#define WEFT_SERVER_COPY_H

extern char *server_copy_next_node(void);

#endif							/* WEFT_SERVER_COPY_H */
