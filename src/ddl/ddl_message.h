/*
 * ddl_message.h
 *	  A schema change on its way from a publisher to a subscriber.
 */
#ifndef WEFT_DDL_MESSAGE_H
#define WEFT_DDL_MESSAGE_H

#include "access/xlogdefs.h"
#include "nodes/pg_list.h"

/* The newest version of the format; ddl_message.c describes it. */
#define DDL_MESSAGE_VERSION 1

/* A setting, under which the statement was executed. */
typedef struct DdlSetting
{
	char	   *name;
	char	   *value;
} DdlSetting;

/* A table that a publication includes because of the statement, or no longer includes. */
typedef struct DdlTable
{
	char	   *publication;
	char	   *schema;
	char	   *name;
	List	   *others;			/* of char *: publications that include a
								 * table which has left this one, or send one
								 * that has entered it, or has a new name, as
								 * part of its root */
} DdlTable;

/* A default whose value, on the publisher, the existing rows got in a new column. */
typedef struct DdlValue
{
	char	   *column;
	char	   *value;			/* as text; NULL if it is null */
	bool		constant;		/* it is the default itself, too */
} DdlValue;

/* What the statement has changed, for other members of a node group; see changes.c. */
typedef struct DdlChange
{
	char	   *change;
	char	   *object;
	char	   *part;			/* such as a column; or empty */
} DdlChange;

/* What the publisher has called something to which the statement need not give a name. */
typedef struct DdlName
{
	char	   *definition;		/* without the name */
	char	   *name;
} DdlName;

typedef struct DdlMessage
{
	int64		id;				/* unique on the publisher */
	char	   *tag;			/* such as CREATE TABLE */
	char	   *role;
	char	   *session_role;	/* what SESSION_USER means in the statement,
								 * or NULL */
	char	   *statement;		/* not to be trusted, unlike the rest */
	char	   *encoding;		/* of the publisher's database; NULL if it is
								 * not known */
	int			server_version; /* that of the server of the session that
								 * executed it, such as 180000; zero if it is
								 * not known, and for one that begins here */
	int64		lock;			/* the group lock under which it was executed,
								 * or zero */
	bool		concurrently;	/* it must run outside of a transaction block */
	bool		explicitly;		/* weft.replicate_ddl_command() has executed
								 * it */
	bool		only_tables;	/* it is not to be executed: tables join and
								 * leave */
	List	   *powers;			/* of char *: what the role may do to a server */
	List	   *publications;	/* of char * */
	List	   *settings;		/* of DdlSetting */
	List	   *seen;			/* of DdlSetting: see seen.c */
	List	   *copied;			/* of DdlSetting: the same */
	XLogRecPtr	made_at;		/* where, in the WAL, a session of a group
								 * made it; else invalid */
	List	   *changes;		/* of DdlChange; empty outside of groups */
	bool		of_trigger;		/* an event trigger has captured it, not Weft */
	List	   *local;			/* of char *: tables that the publisher keeps
								 * for itself, if of_trigger */
	List	   *levels;			/* of DdlSetting: option "ddl" of each
								 * publication, if of_trigger */
	List	   *tables;			/* of DdlTable: new ones */
	List	   *entered;		/* of DdlTable: older ones that publications
								 * include now */
	List	   *left;			/* of DdlTable */
	List	   *attached;		/* of DdlTable: those that send rows of a
								 * published table as their own */

	/* Empty if the publisher does not know them. */
	List	   *touched;		/* of char *: relations that it has touched */
	List	   *values;			/* of DdlValue */
	List	   *names;			/* of DdlName: what it has created */
	bool		may_be_gone;	/* what it drops may never have been announced */
} DdlMessage;

extern char *ddl_message_write(const DdlMessage *message);
extern DdlMessage *ddl_message_read(const char *json, int length);

#endif							/* WEFT_DDL_MESSAGE_H */
