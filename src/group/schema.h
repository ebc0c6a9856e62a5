/*
 * schema.h
 *	  The schema of the member that is copied.
 */
#ifndef WEFT_GROUP_SCHEMA_H
#define WEFT_GROUP_SCHEMA_H

extern char *schema_dump(const char *dsn, const char *node, const char *snapshot,
						 const char *section);
extern void schema_run(const char *script);

#endif							/* WEFT_GROUP_SCHEMA_H */
