/*
 * fast_column.h
 *	  The fast path: columns, and values of them as they are sent.
 */
#ifndef WEFT_FAST_COLUMN_H
#define WEFT_FAST_COLUMN_H

#include "common/hashfn.h"
#include "fmgr.h"
#include "wire.h"

typedef struct FastInput
{
	FmgrInfo	function;		/* fn_oid is invalid until it is needed */
	Oid			param;
} FastInput;

/* How the values of a local column are made of what is sent. */
typedef struct FastColumn
{
	int			local;			/* its index in the local table, from 0 */
	Oid			type;
	int32		typmod;
	int			fixed_length;	/* of the binary form, if that is just a
								 * number */
	bool		is_key;			/* of the key that rows are found by */
	bool		is_indexed;		/* by any index */
	bool		can_be_read;	/* whatever a coalesced update brings, to see
								 * if it is valid */
	FastInput	text_input;
	FastInput	binary_input;
} FastColumn;

extern void fast_column_describe(FastColumn *column, Oid type, int32 typmod);
extern bool fast_column_value(FastColumn *column, MemoryContext context,
							  const WireColumn *sent, Datum *value, bool *isnull);
extern bool fast_column_integer(const WireColumn *sent, int length, int64 *value);

/* Returns an integer of a length in bytes as a number. */
static inline int64
fast_column_number(Datum value, int length)
{
	switch (length)
	{
		case sizeof(int16):
			return DatumGetInt16(value);
		case sizeof(int32):
			return DatumGetInt32(value);
		default:
			return DatumGetInt64(value);
	}
}

/* Adds a key's next column to the hash so far, which starts as the relation's ID. */
static inline uint32
fast_column_hash(uint32 hash, const WireColumn *sent)
{
	return hash_combine(hash, hash_bytes((const unsigned char *) sent->data, sent->length));
}

#endif							/* WEFT_FAST_COLUMN_H */
