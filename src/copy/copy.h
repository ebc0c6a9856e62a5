/*
 * copy.h
 *	  The initial copy within the server's table synchronization worker.
 */
#ifndef WEFT_COPY_H
#define WEFT_COPY_H

extern void copy_install(void);

#endif							/* WEFT_COPY_H */
