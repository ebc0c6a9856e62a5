/*
 * connection.c
 *	  Slots and the beginning of the stream.
 *
 * A subscription's slot uses the output plugin "weft" (publish/) if the publisher has
 * it and allows it, and pgoutput otherwise.  Only a leader asks the plugin for batches,
 * with an option.  Without that option the plugin sends exactly what pgoutput would.
 * Therefore a subscription whose slot uses it can be applied natively, and can be
 * synchronized by the server's own workers.
 *
 * A leader asks for compression only if the publisher knows it.
 *
 * The commands are built here, because the server's functions know no other plugin and
 * no further option.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_subscription.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "funcapi.h"
#include "known_origin.h"
#include "next_leader.h"
#include "node_copy.h"
#include "node_identity.h"
#include "publish/batch_format.h"
#include "receive/connection.h"
#include "receive/led_subscription.h"
#include "receive/recent_commits.h"
#include "remote_query.h"
#include "replication/worker_internal.h"
#include "seam/seam.h"
#include "server_copy.h"
#include "storage/lmgr.h"
#include "subscription_settings.h"
#include "utils/builtins.h"

/* Older publishers have no Weft. */
#define FIRST_VERSION_WITH_WEFT 170000

/* Of the leader's stream. */
static bool batches = false;
static Compression stream_compression = COMPRESSION_OFF;
static int	compression_wanted; /* weft.compression when it began */
static XLogRecPtr confirmed;	/* of the slot then */

/* Has the publisher loaded Weft, and does it allow its output plugin? */
static bool
publisher_offers_plugin(WalReceiverConn *conn)
{
	RemoteValue *values;

	if (walrcv_server_version(conn) < FIRST_VERSION_WITH_WEFT)
		return false;
	values = remote_query_row(conn, NULL,
							  "SELECT (pg_catalog.current_setting('weft.writers_per_subscription', true) IS NOT NULL"
							  " AND (setting IS NULL OR setting = ''"
							  " OR 'weft' = ANY (pg_catalog.regexp_split_to_array(setting, '[\\s,\"]+'))))::pg_catalog.text"
							  " FROM pg_catalog.current_setting('output_plugin_libraries', true) setting",
							  1);
	return values != NULL && values[0] != NULL && strcmp(values[0], "true") == 0;
}

/* Creates a slot with Weft's plugin and without a snapshot; false if that fails. */
static bool
create_weft_slot(WalReceiverConn *conn, const char *slotname, bool two_phase,
				 bool failover, XLogRecPtr *lsn)
{
	StringInfoData command;
	RemoteValue *values;

	initStringInfo(&command);
	appendStringInfo(&command, "CREATE_REPLICATION_SLOT %s LOGICAL weft (%s%sSNAPSHOT 'nothing')",
					 quote_identifier(slotname), two_phase ? "TWO_PHASE, " : "",
					 failover ? "FAILOVER, " : "");

	/* name, consistent point, snapshot, plugin */
	values = remote_query_row(conn, NULL, command.data, 4);
	if (values == NULL || values[1] == NULL)
		return false;
	if (lsn)
		*lsn = remote_lsn(values[1]);
	return true;
}

/*
 * In place of walrcv_create_slot.  Temporary slots belong to initial copies, which read
 * little; they use pgoutput.
 */
char *
connection_create_slot(WalReceiverConn *conn, const char *slotname,
					   bool temporary, bool two_phase, bool failover,
					   CRSSnapshotAction snapshot_action, XLogRecPtr *lsn)
{
	/* Only the slot of a subscription has no exported snapshot. */
	if (!temporary && snapshot_action == CRS_NOEXPORT_SNAPSHOT &&
		publisher_offers_plugin(conn) &&
		create_weft_slot(conn, slotname, two_phase, failover, lsn))
		return NULL;

	return (seam_native->walrcv_create_slot) (conn, slotname, temporary, two_phase,
											  failover, snapshot_action, lsn);
}

/*
 * Does the slot use Weft's output plugin?  If so, *knows_lz4 tells whether the publisher
 * knows LZ4.  Called outside of transactions.
 */
static bool
slot_uses_plugin(WalReceiverConn *conn, const char *slotname, bool *knows_lz4)
{
	MemoryContext old = CurrentMemoryContext;
	StringInfoData query;
	RemoteValue *values;
	bool		result;

	*knows_lz4 = false;
	if (walrcv_server_version(conn) < FIRST_VERSION_WITH_WEFT)
		return false;
	StartTransactionCommand();
	initStringInfo(&query);
	appendStringInfo(&query,
					 "SELECT plugin::pg_catalog.text,"
					 " (SELECT ('lz4' = ANY (enumvals))::pg_catalog.text"
					 " FROM pg_catalog.pg_settings WHERE name = 'weft.compression')"
					 " FROM pg_catalog.pg_replication_slots"
					 " WHERE slot_name = %s", quote_literal_cstr(slotname));
	values = remote_query_row(conn, NULL, query.data, 2);
	result = values != NULL && values[0] != NULL && strcmp(values[0], "weft") == 0;
	*knows_lz4 = result && values[1] != NULL && strcmp(values[1], "true") == 0;
	CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	return result;
}

/*
 * A publisher that was restored to an earlier time, or a standby that was promoted without everything, does not have what
 * this subscription has applied.  It would send nothing until its WAL has reached that position, and everything
 * before would be lost.  Members of a node group are compared by their nodes instead (check_membership()).
 */
static void
check_not_ahead(XLogRecPtr startpoint, XLogRecPtr wal_end)
{
	if (startpoint <= wal_end || node_identity_for(MySubscription->name) != NULL)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("subscription \"%s\" is ahead of its publisher", MySubscription->name),
			 errdetail("It has applied everything up to " compat_lsn_format ", but the publisher's WAL ends at " compat_lsn_format ".",
					   LSN_FORMAT_ARGS(startpoint), LSN_FORMAT_ARGS(wal_end)),
			 errhint("If the publisher was restored to an earlier time, or lost transactions in a failover, create the subscription again with \"copy_data = false\", and compare it with weft.compare_subscription().")));
}

/*
 * Returns up to where the publisher knows everything to be flushed: it sends nothing before that,
 * though the replication origin may be older, because nothing was applied since.  Invalid if it
 * does not tell.
 *
 * The walsender of the leader before this one may still be about to read that leader's last report.
 * Therefore this fails as START_REPLICATION would, until the slot is free: then nobody moves it.
 */
static XLogRecPtr
slot_confirmed(WalReceiverConn *conn, const char *slotname, XLogRecPtr startpoint)
{
	MemoryContext old = CurrentMemoryContext;
	XLogRecPtr	result = InvalidXLogRecPtr;
	RemoteValue *values;

	StartTransactionCommand();
	values = remote_query_row(conn, NULL,
							  psprintf("SELECT confirmed_flush_lsn::pg_catalog.text, active_pid::pg_catalog.text,"
									   " CASE WHEN NOT pg_catalog.pg_is_in_recovery()"
									   " THEN pg_catalog.pg_current_wal_flush_lsn()::pg_catalog.text END"
									   " FROM pg_catalog.pg_replication_slots WHERE slot_name = %s",
									   quote_literal_cstr(slotname)), 3);
	if (values != NULL && values[1] != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("replication slot \"%s\" is active for PID %s", slotname, values[1])));
	if (values != NULL && values[2] != NULL)
		check_not_ahead(startpoint, remote_lsn(values[2]));
	if (values != NULL && values[0] != NULL)
		result = remote_lsn(values[0]);
	CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	return result;
}

/* The publications' names as the option's value: a list of identifiers. */
static char *
publication_names(List *names)
{
	StringInfoData result;
	ListCell   *cell;

	initStringInfo(&result);
	foreach(cell, names)
	{
		if (result.len > 0)
			appendStringInfoChar(&result, ',');
		appendStringInfoString(&result, quote_identifier(strVal(lfirst(cell))));
	}
	return result.data;
}

static char *
start_command(const WalRcvStreamOptions *options, Compression compression)
{
	StringInfoData command;

	initStringInfo(&command);
	appendStringInfo(&command,
					 "START_REPLICATION SLOT %s LOGICAL %X/%X (proto_version '%u', "
					 "publication_names %s, " BATCH_OPTION " '%d'",
					 quote_identifier(options->slotname),
					 LSN_FORMAT_ARGS(options->startpoint),
					 options->proto.logical.proto_version,
					 quote_literal_cstr(publication_names(options->proto.logical.publication_names)),
					 BATCH_VERSION);
	if (compression == COMPRESSION_LZ4)
		appendStringInfoString(&command, ", " BATCH_COMPRESSION_OPTION " 'lz4'");
	if (options->proto.logical.streaming_str)
		appendStringInfo(&command, ", streaming %s",
						 quote_literal_cstr(options->proto.logical.streaming_str));
	if (options->proto.logical.origin)
		appendStringInfo(&command, ", origin %s",
						 quote_literal_cstr(options->proto.logical.origin));
	if (options->proto.logical.twophase)
		appendStringInfoString(&command, ", two_phase 'on'");
	if (options->proto.logical.binary)
		appendStringInfoString(&command, ", binary 'true'");
	appendStringInfoChar(&command, ')');
	return command.data;
}

/*
 * Reads what decides how the subscription is applied, and whether it detects conflicts.  Only
 * writers do so; therefore the publisher must not send anything that the server's apply loop
 * would apply.
 */
static void
prepare_settings(WalRcvStreamOptions *options)
{
	SubscriptionSettings settings;

	StartTransactionCommand();
	settings = subscription_settings_get(MySubscription->oid);
	led.detect_conflicts = settings.detect_conflicts;
	led.ddl = settings.ddl;
	if (next_leader_take_unstreamed(MySubscription->oid))
		options->proto.logical.streaming_str = NULL;
	if (led.detect_conflicts)
		subscription_settings_check_detection(MySubscription->name);
	CommitTransactionCommand();
	if (!led.detect_conflicts)
		return;
	if (MySubscription->twophasestate != LOGICALREP_TWOPHASE_STATE_DISABLED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("conflicts of subscription \"%s\" cannot be detected because it has \"two_phase\" enabled",
						MySubscription->name)));
	options->proto.logical.streaming_str = NULL;
}

/*
 * Fails if this server is a copy of a member that is to become another node: the slot belongs to the member.
 * The lock keeps the subscription as this process knows it: it becomes that node's in one transaction.
 * The options point into what this process knows, which may be read anew.
 */
static void
check_copy(WalRcvStreamOptions *options)
{
	MemoryContext old = CurrentMemoryContext;
	char	   *next_node;

	StartTransactionCommand();
	LockSharedObject(SubscriptionRelationId, MySubscription->oid, 0, AccessShareLock);
	maybe_reread_subscription();
	options->slotname = MySubscription->slotname;
	options->proto.logical.publication_names = MySubscription->publications;
	if (options->proto.logical.origin != NULL)
		options->proto.logical.origin = MySubscription->origin;
	next_node = server_copy_next_node();
	if (next_node != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" is not applied, because this server is a copy that is to become node \"%s\"",
						MySubscription->name, next_node),
				 errhint("Call weft.join_node_group with \"from_backup\". If this server replaces the one that was copied, call weft.part_node for node \"%s\" by force.",
						 next_node)));
	CommitTransactionCommand();
	MemoryContextSwitchTo(old);
}

/*
 * Fails if this node is no longer a member of the subscription's group: the slot may now
 * belong to another node of the same name.  Nor does it start to stream from, or as, a copy of a
 * member that was left behind by a failover.
 */
static void
check_membership(WalReceiverConn *conn, XLogRecPtr startpoint)
{
	MemoryContext old = CurrentMemoryContext;
	char	   *identity;
	RemoteValue *values = NULL;
	bool		known = true;

	StartTransactionCommand();
	identity = node_identity_for(MySubscription->name);
	if (identity)
	{
		identity = MemoryContextStrdup(old, identity);
		values = remote_query_row(conn, NULL,
								  psprintf("SELECT pg_catalog.count(*) FROM weft.node_entry"
										   " WHERE identity = '%s' AND NOT is_local", identity), 1);
		known = values != NULL && strcmp(values[0], "1") == 0;
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(old);
	if (known)
	{
		if (identity)
			node_copy_meet(conn, MySubscription->oid, MySubscription->name, identity, startpoint);
		return;
	}
	if (values == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONNECTION_FAILURE),
				 errmsg("could not ask the publisher of subscription \"%s\" whether this node is a member of its group",
						MySubscription->name),
				 errhint("The role that connects needs the privileges that weft.grant_node_admin grants.")));
	else
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the publisher of subscription \"%s\" does not know this node as a member of its group",
						MySubscription->name),
				 errhint("If this node was parted by force, call weft.leave_node_group.")));
}

/* Starts streaming; asks for batches if the slot's plugin can send them. */
static bool
start_streaming(WalReceiverConn *conn, const WalRcvStreamOptions *options)
{
	RemoteAnswer answer;
	bool		knows_lz4;
	bool		uses_plugin = slot_uses_plugin(conn, options->slotname, &knows_lz4);
	bool		started;

	compression_wanted = weft_compression;
	stream_compression = knows_lz4 ? weft_compression : COMPRESSION_OFF;
	if (stream_compression != weft_compression)
		ereport(LOG,
				(errmsg("changes for subscription \"%s\" are sent uncompressed",
						MySubscription->name),
				 uses_plugin ?
				 errdetail("The publisher does not support LZ4.") :
				 errdetail("Slot \"%s\" does not use the output plugin \"weft\".",
						   options->slotname)));
	if (!uses_plugin)
	{
		ereport(DEBUG1,
				(errmsg_internal("slot \"%s\" does not use the output plugin \"weft\"",
								 options->slotname)));
		return (seam_native->walrcv_startstreaming) (conn, options);
	}

	answer = remote_query(conn, NULL, start_command(options, stream_compression),
						  WALRCV_OK_COPY_BOTH, 0);
	started = answer.status == WALRCV_OK_COPY_BOTH;
	if (!started && answer.status != WALRCV_OK_COMMAND)
		ereport(ERROR,
				(errcode(ERRCODE_PROTOCOL_VIOLATION),
				 errmsg("could not start WAL streaming: %s", answer.problem)));
	batches = true;
	ereport(DEBUG1,
			(errmsg_internal("slot \"%s\" uses the output plugin \"weft\", which sends batches%s",
							 options->slotname,
							 stream_compression == COMPRESSION_LZ4 ? ", compressed with LZ4" : "")));
	return started;
}

/* In place of walrcv_startstreaming, in a leader. */
bool
connection_start_streaming(WalReceiverConn *conn, const WalRcvStreamOptions *options)
{
	WalRcvStreamOptions adapted = *options;

	prepare_settings(&adapted);
	check_copy(&adapted);
	if (led.detect_conflicts)
		known_origin_note();
	check_membership(conn, options->startpoint);
	recent_commits_start(conn);
	confirmed = slot_confirmed(conn, adapted.slotname, options->startpoint);
	return start_streaming(conn, &adapted);
}

/* Returns the position before which nothing is sent, as far as the publisher has told it. */
XLogRecPtr
connection_confirmed(void)
{
	return confirmed;
}

/* Has the leader asked for batches? */
bool
connection_sends_batches(void)
{
	return batches;
}

/* How may batches be compressed? */
Compression
connection_compression(void)
{
	return stream_compression;
}

/* Has weft.compression changed since streaming began? */
bool
connection_outdated(void)
{
	return batches && compression_wanted != weft_compression;
}
