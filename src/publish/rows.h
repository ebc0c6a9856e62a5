/*
 * rows.h
 *	  Writes the rows of ordinary tables in place of pgoutput.
 */
#ifndef WEFT_ROWS_H
#define WEFT_ROWS_H

#include "nodes/pg_list.h"
#include "replication/logical.h"

/* Before pgoutput's startup, and after it. */
extern void rows_take_options(List **options);
extern void rows_start(LogicalDecodingContext *ctx);

/* pgoutput, or Weft, has written a message; returns whether it is to be sent. */
extern bool rows_message(const char *data, int length);

#endif							/* WEFT_ROWS_H */
