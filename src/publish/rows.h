/*
 * rows.h
 *	  Writing the rows of ordinary tables in place of pgoutput.
 */
#ifndef WEFT_ROWS_H
#define WEFT_ROWS_H

#include "nodes/pg_list.h"
#include "replication/logical.h"
#include "replication/reorderbuffer.h"
#include "utils/rel.h"

/* Before pgoutput's startup, and behind it. */
extern void rows_take_options(List **options);
extern void rows_start(LogicalDecodingContext *ctx);

/* pgoutput, or we, have written a message; returns whether it is to be sent. */
extern bool rows_message(const char *data, int length);

/* May a change's message have more than so many bytes? */
extern bool rows_larger_than(Relation relation, ReorderBufferChange *change, Size limit);

#endif							/* WEFT_ROWS_H */
