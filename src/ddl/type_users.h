/*
 * type_users.h
 *	  Relations with a column of a type, or of one that is made of it.
 */
#ifndef WEFT_TYPE_USERS_H
#define WEFT_TYPE_USERS_H

#include "nodes/pg_list.h"

extern List *type_users(Oid type);

#endif							/* WEFT_TYPE_USERS_H */
