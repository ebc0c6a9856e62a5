/*
 * batch.h
 *	  Taking the publisher's batches apart.
 */
#ifndef WEFT_BATCH_H
#define WEFT_BATCH_H

extern bool batch_open(const char *message, int length);
extern int	batch_next(char **message);
extern bool batch_publisher_holds(void);

#endif							/* WEFT_BATCH_H */
