/*
 * key_hash.c
 *	  Hashes of values that are the same on all members of a group.
 *
 * Equal values must have equal hashes on every member, because a node that joins takes
 * over another member's tombstones.  For most types, the server's hash functions see to
 * that.  They do not if a value holds an OID, which each member has assigned itself: the
 * value of an enum, or of regclass and the like.  Such a value is hashed by its name.
 * Arrays, ranges and composite values are hashed by what they contain.
 *
 * A type without a hash function is hashed by its text, which must not depend on the
 * session's settings.
 *
 * Nondeterministic collations remain: the ICU library says what is equal, so members
 * should have the same version of it.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "conflict/key_hash.h"
#include "miscadmin.h"
#include "oid_alias.h"
#include "pinned_settings.h"
#include "utils/array.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/multirangetypes.h"
#include "utils/rangetypes.h"
#include "utils/typcache.h"

/* The hash of a null; an arbitrary number. */
#define NULL_HASH UINT64CONST(0x6e756c6c)

static uint64
hash_string(const char *string, uint64 seed)
{
	return hash_bytes_extended((const unsigned char *) string, strlen(string), seed);
}

static uint64
hash_output(Oid type, Datum value, uint64 seed)
{
	Oid			function;
	bool		is_varlena;

	getTypeOutputInfo(type, &function, &is_varlena);
	return hash_string(OidOutputFunctionCall(function, value), seed);
}

/* Hashes the text of the value under pinned settings, whatever this session's are. */
static uint64
hash_text(Oid type, Datum value, uint64 seed)
{
	int			level = NewGUCNestLevel();
	uint64		result;

	pinned_settings_set_local();
	result = hash_output(type, value, seed);
	AtEOXact_GUC(true, level);
	return result;
}

static uint64
hash_array_value(Oid collation, Datum value, uint64 seed)
{
	ArrayType  *array = DatumGetArrayTypeP(value);
	TypeCacheEntry *element = lookup_type_cache(ARR_ELEMTYPE(array), 0);
	Datum	   *values;
	bool	   *nulls;
	int			count;
	uint64		result = seed;

	deconstruct_array(array, element->type_id, element->typlen, element->typbyval,
					  element->typalign, &values, &nulls, &count);
	for (int i = 0; i < count; i++)
		result = hash_combine64(result, nulls[i] ? NULL_HASH :
								key_hash_value(element->type_id, collation, values[i], seed));
	return result;
}

static uint64
hash_record_value(Datum value, uint64 seed)
{
	HeapTupleHeader header = DatumGetHeapTupleHeader(value);
	TupleDesc	desc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(header),
											  HeapTupleHeaderGetTypMod(header));
	Datum	   *values = palloc(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));
	HeapTupleData tuple = {.t_len = HeapTupleHeaderGetDatumLength(header),.t_data = header};
	uint64		result = seed;

	heap_deform_tuple(&tuple, desc, values, nulls);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (attribute->attisdropped)
			continue;
		result = hash_combine64(result, nulls[i] ? NULL_HASH :
								key_hash_value(attribute->atttypid, attribute->attcollation,
											   values[i], seed));
	}
	ReleaseTupleDesc(desc);
	return result;
}

static uint64
hash_bound(TypeCacheEntry *range, const RangeBound *bound, uint64 seed)
{
	if (bound->infinite)
		return NULL_HASH;
	return hash_combine64(bound->inclusive,
						  key_hash_value(range->rngelemtype->type_id, range->rng_collation,
										 bound->val, seed));
}

static uint64
hash_range_value(TypeCacheEntry *range, const RangeType *value, uint64 seed)
{
	RangeBound	lower;
	RangeBound	upper;
	bool		empty;

	range_deserialize(range, value, &lower, &upper, &empty);
	if (empty)
		return seed;
	return hash_combine64(hash_bound(range, &lower, seed), hash_bound(range, &upper, seed));
}

static uint64
hash_multirange_value(Oid type, Datum value, uint64 seed)
{
	TypeCacheEntry *entry = lookup_type_cache(type, TYPECACHE_MULTIRANGE_INFO);
	RangeType **ranges;
	int32		count;
	uint64		result = seed;

	multirange_deserialize(entry->rngtype, DatumGetMultirangeTypeP(value), &count, &ranges);
	for (int i = 0; i < count; i++)
		result = hash_combine64(result, hash_range_value(entry->rngtype, ranges[i], seed));
	return result;
}

/* Hashes a value that does not contain other values. */
static uint64
hash_base_value(Oid type, Oid collation, Datum value, uint64 seed)
{
	TypeCacheEntry *entry;

	if (oid_alias_type(type))
		return hash_text(type, value, seed);
	if (type == MONEYOID)
		return DatumGetUInt64(DirectFunctionCall2(hashint8extended, value,
												  Int64GetDatum(seed)));
	entry = lookup_type_cache(type, TYPECACHE_HASH_EXTENDED_PROC_FINFO);
	if (!OidIsValid(entry->hash_extended_proc_finfo.fn_oid))
		return hash_text(type, value, seed);
	return DatumGetUInt64(FunctionCall2Coll(&entry->hash_extended_proc_finfo, collation,
											value, Int64GetDatum(seed)));
}

/* Hashes a value such that equal values have equal hashes on all members. */
uint64
key_hash_value(Oid type, Oid collation, Datum value, uint64 seed)
{
	TypeCacheEntry *entry = lookup_type_cache(type, 0);

	check_stack_depth();
	switch (entry->typtype)
	{
		case TYPTYPE_DOMAIN:
			return key_hash_value(getBaseType(type), collation, value, seed);
		case TYPTYPE_ENUM:
			return hash_output(type, value, seed);
		case TYPTYPE_COMPOSITE:
			return hash_record_value(value, seed);
		case TYPTYPE_RANGE:
			return hash_range_value(lookup_type_cache(type, TYPECACHE_RANGE_INFO),
									DatumGetRangeTypeP(value), seed);
		case TYPTYPE_MULTIRANGE:
			return hash_multirange_value(type, value, seed);
	}
	if (entry->typsubscript == F_ARRAY_SUBSCRIPT_HANDLER)
		return hash_array_value(collation, value, seed);
	return hash_base_value(type, collation, value, seed);
}
