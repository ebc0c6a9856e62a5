/*
 * publisher_rows.h
 *	  Rows of any size from the publisher, as text.
 */
#ifndef WEFT_VERIFY_PUBLISHER_ROWS_H
#define WEFT_VERIFY_PUBLISHER_ROWS_H

#include "replication/walreceiver.h"

/*
 * Takes a row: an array of texts, NULL for null, which it has to copy.  Returns whether it wants
 * more.
 */
typedef bool (*PublisherRowsTake) (void *arg, char **row, Size size);

extern bool publisher_rows_read(WalReceiverConn *conn, const char *table, const char *query,
								int columns, PublisherRowsTake take, void *arg);

#endif							/* WEFT_VERIFY_PUBLISHER_ROWS_H */
