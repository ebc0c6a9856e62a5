/*
 * row_message.h
 *	  Writes the message of an INSERT, UPDATE or DELETE.
 */
#ifndef WEFT_ROW_MESSAGE_H
#define WEFT_ROW_MESSAGE_H

#include "lib/stringinfo.h"
#include "publish/row_relation.h"

extern void row_message_start(MemoryContext decoding_context);
extern void row_message_write(StringInfo out, RowRelation *entry, Relation relation,
							  ReorderBufferChange *change, TransactionId streamed);
extern bool row_message_larger_than(Relation relation, ReorderBufferChange *change,
									Size limit);

#endif							/* WEFT_ROW_MESSAGE_H */
