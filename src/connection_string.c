/*
 * connection_string.c
 *	  Checks connection strings without showing them.
 */
#include "postgres.h"

#include "connection_string.h"
#include "fmgr.h"
#include "replication/walreceiver.h"

/*
 * Checks the syntax of a connection string; "whose" says in the message whose it is.
 * libpq's own message about an invalid one may quote any part of it, its password included.
 * With "must_use_password", the string must contain one.
 */
void
connection_string_check(const char *dsn, const char *whose, bool must_use_password)
{
	MemoryContext old = CurrentMemoryContext;

	load_file("libpqwalreceiver", false);
	PG_TRY();
	{
		walrcv_check_conninfo(dsn, must_use_password);
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_SYNTAX_ERROR)
			PG_RE_THROW();
		MemoryContextSwitchTo(old);
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("invalid connection string for %s", whose),
				 errhint("Use keywords and values, as in \"host=... dbname=...\", or a URI.")));
	}
	PG_END_TRY();
}
