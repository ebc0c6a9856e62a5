/*
 * oid_alias.h
 *	  Types whose values are OIDs of objects and whose text is their name.
 */
#ifndef WEFT_OID_ALIAS_H
#define WEFT_OID_ALIAS_H

extern bool oid_alias_type(Oid type);

#endif							/* WEFT_OID_ALIAS_H */
