/*
 * compat.h
 *	  Everything that differs between the server versions Weft supports.
 */
#ifndef WEFT_COMPAT_H
#define WEFT_COMPAT_H

#if PG_VERSION_NUM < 170000 || PG_VERSION_NUM >= 190000
#error "Weft supports PostgreSQL 17 and 18"
#endif

/* 18 has another way to say that a function does not return. */
#if PG_VERSION_NUM < 180000
#define pg_noreturn pg_attribute_noreturn()
#endif

/*
 * From 18 on the server reports and counts conflicts while it applies
 * (replication/conflict.h); before, only the debug log knew of them.
 */
#define HAVE_APPLY_CONFLICTS (PG_VERSION_NUM >= 180000)

#endif							/* WEFT_COMPAT_H */
