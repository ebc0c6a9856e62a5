/*
 * schema_facts.h
 *	  Reads what a catalog says of the tables of a subscription.
 */
#ifndef WEFT_VERIFY_SCHEMA_FACTS_H
#define WEFT_VERIFY_SCHEMA_FACTS_H

#include "catalog/pg_subscription.h"
#include "replication/walreceiver.h"

/* A table that is published, or belongs to the subscription. */
typedef struct SchemaTable
{
	char	   *schema;
	char	   *name;

	/*
	 * Of a published one: so is the partitioned table of which it is a part,
	 * and which may be in the subscription in its place.
	 */
	bool		covered;
} SchemaTable;

/* One property of one object.  Texts of both servers can be compared. */
typedef struct SchemaFact
{
	char	   *class;			/* for sorting: tables first */
	char	   *kind;			/* "table", "column", ... */
	char	   *object;			/* its name, quoted and with the schema */
	char	   *table;			/* of which it is a part; or empty */
	char	   *order;			/* for sorting: the most telling one first */
	char	   *property;
	char	   *value;
} SchemaFact;

extern List *schema_published_tables(Subscription *subscription, WalReceiverConn *conn);
extern List *schema_subscribed_tables(const Subscription *subscription);
extern List *schema_facts_there(Subscription *subscription, WalReceiverConn *conn, List *tables);
extern List *schema_facts_here(List *tables);

#endif							/* WEFT_VERIFY_SCHEMA_FACTS_H */
