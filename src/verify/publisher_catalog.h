/*
 * publisher_catalog.h
 *	  What the publisher's catalog says of the tables that a subscription gets.
 */
#ifndef WEFT_VERIFY_PUBLISHER_CATALOG_H
#define WEFT_VERIFY_PUBLISHER_CATALOG_H

#include "access/attnum.h"
#include "catalog/pg_subscription.h"
#include "nodes/bitmapset.h"
#include "nodes/pg_list.h"
#include "replication/walreceiver.h"

typedef struct CatalogColumn
{
	AttrNumber	attnum;
	char	   *name;
	Oid			type;
	int32		typmod;
	bool		binary_order;	/* no collation, or one that compares bytes */
	bool		generated;
	bool		not_null;
	bool		readable;		/* has the connection's role the right to read
								 * it? */
} CatalogColumn;

typedef struct CatalogTable
{
	Oid			relid;
	char	   *schema;
	char	   *name;
	char		relkind;
	bool		usable;			/* may its schema be used, and is there no
								 * row-level security? */
	List	   *columns;		/* of CatalogColumn, in the order of their
								 * numbers */
	Bitmapset  *published;		/* numbers of the columns that are published */
	List	   *key;			/* column numbers (int list) of the replica
								 * identity index, or else of the primary key;
								 * may be NIL */
	List	   *filters;		/* row filters, of which one must be true;
								 * NIL: all rows */
	char	   *problem;		/* a sentence, if what is published is not one
								 * and the same set of rows and columns for
								 * all commands; else NULL */
	double		estimated_rows; /* 0 if unknown */
} CatalogTable;

typedef struct Catalog
{
	char	   *encoding;		/* of the publisher's database */
	List	   *tables;			/* of CatalogTable */
} Catalog;

/*
 * Asks the publisher, as published_tables_get() describes.  "relids" are tables here, whose
 * names count; NIL means all tables.
 */
extern Catalog *publisher_catalog_read(Subscription *subscription, WalReceiverConn *conn,
									   List *relids);

#endif							/* WEFT_VERIFY_PUBLISHER_CATALOG_H */
