/*
 * key_hash.h
 *	  Hashes of values that are the same on all members of a group.
 */
#ifndef WEFT_KEY_HASH_H
#define WEFT_KEY_HASH_H

extern uint64 key_hash_value(Oid type, Oid collation, Datum value, uint64 seed);

#endif							/* WEFT_KEY_HASH_H */
