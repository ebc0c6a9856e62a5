/*
 * publication_settings.h
 *	  What Weft stores for a publication: which schema changes it publishes.
 */
#ifndef WEFT_PUBLICATION_SETTINGS_H
#define WEFT_PUBLICATION_SETTINGS_H

#include "nodes/pg_list.h"

/* Which schema changes a publication publishes; each level includes those before it. */
typedef enum DdlLevel
{
	DDL_LEVEL_NONE,
	DDL_LEVEL_TABLE,
	DDL_LEVEL_ALL,
} DdlLevel;

/* A publication that publishes schema changes. */
typedef struct DdlPublication
{
	Oid			oid;
	char	   *name;
	Oid			owner;
	DdlLevel	level;
	bool		all_tables;		/* everything: FOR ALL TABLES, or "group" */
	bool		via_root;		/* publish_via_partition_root */
	bool		group;			/* a node group's: new tables are added to it */
} DdlPublication;

extern bool publication_settings_parse_level(const char *text, DdlLevel *level);
extern void publication_settings_check_label(Oid publication, const char *label);
extern DdlLevel publication_settings_get(Oid publication);
extern void publication_settings_set(Oid publication, DdlLevel level);
extern void publication_settings_check(Oid publication, DdlLevel level);
extern void publication_settings_complete(Oid publication);
extern Oid	publication_settings_queue(void);
extern List *publication_settings_list(void);
extern bool publication_settings_of_group(void);

#endif							/* WEFT_PUBLICATION_SETTINGS_H */
