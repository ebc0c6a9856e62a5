/*
 * key_prefix.c
 *	  The fast path: the first bytes of a btree's keys, as numbers in the same order.
 *
 * To compare two keys takes a function call for each column, and for some types a long
 * computation.  Two numbers are compared at once, and one can tell from them how far
 * one key is behind another one.  Therefore leaf_map.c keeps and compares prefixes: the
 * bytes of the key's columns one behind the other, as far as they fit, in a form
 * in which they are in the index's order:
 *	 - an integer, date or time has its highest byte first, and its sign inverted;
 *	 - a uuid is compared byte by byte anyway;
 *	 - so is text in collation "C", and bytea; a short one is filled with zeros;
 *	 - a column in descending order has all its bits inverted.
 * The first column that has no such form ends the prefix, as does one of variable length.
 * An index whose first column has none gets no map.
 *
 * Keys with the same prefix need not be equal.  A prefix that is wrong costs time, and
 * nothing else (leaf_map.c).
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "catalog/pg_type_d.h"
#include "compat.h"
#include "fast/key_prefix.h"
#include "port/pg_bswap.h"
#include "utils/pg_locale.h"
#include "utils/rel.h"
#include "utils/typcache.h"
#include "utils/uuid.h"

/* Describes a column of an index.  Returns false if its values have no such form. */
static bool
describe_part(Relation index, int column, KeyPart *part)
{
	Oid			type = index->rd_opcintype[column];

	/* Another operator class may have another order. */
	if (index->rd_opfamily[column] != lookup_type_cache(type, TYPECACHE_BTREE_OPFAMILY)->btree_opf)
		return false;
	part->descending = (index->rd_indoption[column] & INDOPTION_DESC) != 0;
	part->length = TupleDescAttr(RelationGetDescr(index), column)->attlen;
	switch (type)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case DATEOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			part->kind = KEY_PART_INTEGER;
			return true;
		case OIDOID:
			part->kind = KEY_PART_UNSIGNED;
			return true;
		case UUIDOID:
			part->kind = KEY_PART_UUID;
			return true;
		case BYTEAOID:
			part->kind = KEY_PART_BYTEA;
			return true;
		case TEXTOID:
			part->kind = KEY_PART_TEXT;
			return compat_collation_is_c(index->rd_indcollation[column]);
		default:
			return false;
	}
}

/* Describes the prefixes of an index's keys.  Returns false if it can have none. */
bool
key_prefix_describe(Relation index, KeyPrefixForm *form)
{
	int			columns = IndexRelationGetNumberOfKeyAttributes(index);

	memset(form, 0, sizeof(KeyPrefixForm));
	while (form->num_parts < columns && form->length < KEY_PREFIX_SIZE)
	{
		KeyPart    *part = &form->parts[form->num_parts];
		int			rest = KEY_PREFIX_SIZE - form->length;

		if (!describe_part(index, form->num_parts, part))
			break;
		part->used = part->length < 0 ? rest : Min(part->length, rest);
		form->length += part->used;
		form->num_parts++;
	}
	return form->num_parts > 0;
}

/* Adds bytes to a prefix that has some: "value" is a number of that many bytes, at most 8. */
static inline void
add_number(KeyPrefix *prefix, int *length, uint64 value, int size)
{
	int			end = *length + size;

	if (end <= sizeof(uint64))
		prefix->high |= value << (64 - 8 * end);
	else
	{
		if (*length < sizeof(uint64))
			prefix->high |= value >> (8 * end - 64);
		prefix->low |= value << (128 - 8 * end);
	}
	*length = end;
}

/* Adds the first "size" bytes of a number that has "whole" bytes. */
static inline void
add_first_bytes(KeyPrefix *prefix, int *length, uint64 value, int whole, int size, bool descending)
{
	if (descending)
		value = ~value;
	value <<= 64 - 8 * whole;
	if (size > 0)
		add_number(prefix, length, value >> (64 - 8 * size), size);
}

static inline void
add_integer(KeyPrefix *prefix, int *length, const KeyPart *part, int64 value)
{
	uint64		bits = (uint64) value;

	if (part->kind == KEY_PART_INTEGER)
		bits ^= UINT64CONST(1) << (8 * part->length - 1);
	add_first_bytes(prefix, length, bits, part->length, part->used, part->descending);
}

/* Adds a part made of bytes; the rest of it consists of zeros. */
static void
add_bytes(KeyPrefix *prefix, int *length, const KeyPart *part, const char *data, int size)
{
	uint64		words[2] = {0, 0};

	memcpy(words, data, Min(size, part->used));
	add_first_bytes(prefix, length, pg_ntoh64(words[0]), sizeof(uint64),
					Min(part->used, sizeof(uint64)), part->descending);
	add_first_bytes(prefix, length, pg_ntoh64(words[1]), sizeof(uint64),
					part->used - Min(part->used, sizeof(uint64)), part->descending);
}

static void
add_value(KeyPrefix *prefix, int *length, const KeyPart *part, Datum value)
{
	switch (part->kind)
	{
		case KEY_PART_INTEGER:
			add_integer(prefix, length, part, fast_column_number(value, part->length));
			break;
		case KEY_PART_UNSIGNED:
			add_integer(prefix, length, part, (uint32) DatumGetObjectId(value));
			break;
		case KEY_PART_UUID:
			add_bytes(prefix, length, part, (char *) DatumGetUUIDP(value)->data, UUID_LEN);
			break;
		case KEY_PART_TEXT:
		case KEY_PART_BYTEA:
			{
				struct varlena *bytes = PG_DETOAST_DATUM_PACKED(value);

				add_bytes(prefix, length, part, VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes));
				if ((Pointer) bytes != DatumGetPointer(value))
					pfree(bytes);
				break;
			}
	}
}

/*
 * Returns the prefix of an entry's key, on a leaf page or above.  Above, columns may be
 * left out behind the first ones; such a key comes before all those that have them.
 */
KeyPrefix
key_prefix_of_entry(const KeyPrefixForm *form, Relation index, IndexTuple entry)
{
	KeyPrefix	prefix = {0, 0};
	int			length = 0;
	int			parts = Min(form->num_parts, BTreeTupleGetNAtts(entry, index));

	for (int i = 0; i < parts; i++)
	{
		bool		isnull;
		Datum		value = index_getattr(entry, i + 1, RelationGetDescr(index), &isnull);

		/* The columns of a replica identity have no nulls. */
		if (isnull)
			break;
		add_value(&prefix, &length, &form->parts[i], value);
	}
	return prefix;
}

/* Returns the prefix of the key that an index is searched for: one scan key for each column. */
KeyPrefix
key_prefix_of_keys(const KeyPrefixForm *form, const ScanKeyData *keys)
{
	KeyPrefix	prefix = {0, 0};
	int			length = 0;

	for (int i = 0; i < form->num_parts; i++)
		add_value(&prefix, &length, &form->parts[i], keys[i].sk_argument);
	return prefix;
}

/* Reads a uuid as text in its usual form: 32 digits, some with hyphens before them. */
static bool
read_uuid(const WireColumn *sent, uint8 *bytes)
{
	int			digits = 0;

	memset(bytes, 0, UUID_LEN);
	for (int i = 0; i < sent->length; i++)
	{
		unsigned char c = sent->data[i];
		int			digit;

		if (c == '-')
			continue;
		if (c >= '0' && c <= '9')
			digit = c - '0';
		else if (c >= 'a' && c <= 'f')
			digit = c - 'a' + 10;
		else
			return false;
		if (digits == 2 * UUID_LEN)
			return false;
		bytes[digits / 2] |= digits % 2 == 0 ? digit << 4 : digit;
		digits++;
	}
	return digits == 2 * UUID_LEN;
}

static bool
add_sent(KeyPrefix *prefix, int *length, const KeyPart *part, const WireColumn *sent)
{
	bool		binary = sent->status == LOGICALREP_COLUMN_BINARY;
	uint8		uuid[UUID_LEN];
	int64		number;

	if (!binary && sent->status != LOGICALREP_COLUMN_TEXT)
		return false;
	switch (part->kind)
	{
		case KEY_PART_INTEGER:
		case KEY_PART_UNSIGNED:
			if (!fast_column_integer(sent, part->length, &number))
				return false;
			add_integer(prefix, length, part, number);
			return true;
		case KEY_PART_UUID:
			if (binary ? sent->length != UUID_LEN : !read_uuid(sent, uuid))
				return false;
			add_bytes(prefix, length, part, binary ? sent->data : (char *) uuid, UUID_LEN);
			return true;
		case KEY_PART_BYTEA:
		case KEY_PART_TEXT:
			if (part->kind == KEY_PART_BYTEA && !binary)
				return false;
			add_bytes(prefix, length, part, sent->data, sent->length);
			return true;
	}
	return false;
}

/*
 * Makes the prefix of a key as it was sent, one column for each part, without the types'
 * own functions.  Returns false if that is not possible.
 */
bool
key_prefix_of_sent(const KeyPrefixForm *form, const WireColumn *sent, KeyPrefix *prefix)
{
	int			length = 0;

	*prefix = (KeyPrefix)
	{
		0, 0
	};
	for (int i = 0; i < form->num_parts; i++)
		if (!add_sent(prefix, &length, &form->parts[i], &sent[i]))
			return false;
	return true;
}
