/*
 * row_relation.h
 *	  What the output plugin has looked up of a table, to write its rows.
 */
#ifndef WEFT_ROW_RELATION_H
#define WEFT_ROW_RELATION_H

#include "fmgr.h"
#include "replication/reorderbuffer.h"
#include "utils/rel.h"

/* Inserts, updates and deletes come first among the changes. */
#define NUM_ACTIONS (REORDER_BUFFER_CHANGE_DELETE + 1)

/* Who writes the rows for one kind of change of a table. */
typedef enum RowWriter
{
	WRITER_UNKNOWN,				/* pgoutput writes the next one */
	WRITER_LEARNING,			/* it is doing that, or has failed */
	WRITER_PGOUTPUT,
	WRITER_OURS,
} RowWriter;

/* How a value is written. */
typedef enum ValueForm
{
	FORM_FUNCTION,				/* by its type's function */
	FORM_FIXED1,				/* as it is, in network byte order */
	FORM_FIXED2,
	FORM_FIXED4,
	FORM_FIXED8,
	FORM_REFERENCE,				/* as it is, of the length of its type */
	FORM_BYTES,					/* as it is, of its own length */
	FORM_CHARACTERS,			/* the same, in the client's encoding */
	FORM_DIGITS2,				/* an integer as text */
	FORM_DIGITS4,
	FORM_DIGITS8,
} ValueForm;

typedef struct RowColumn
{
	int			index;			/* among the table's, dropped ones included */
	int			length;			/* of the type; -1 if that varies */
	char		status;			/* LOGICALREP_COLUMN_BINARY or _TEXT */
	ValueForm	form;
	Oid			function_oid;
	FmgrInfo	function;		/* looked up on first use */
} RowColumn;

typedef struct RowRelation
{
	Oid			relid;			/* the hash key */
	RowWriter	writers[NUM_ACTIONS];
	bool		announced;		/* pgoutput has written a row, and therefore
								 * RELATION, outside of streams */
	TransactionId stream_xid;	/* the same in the stream of this transaction,
								 * if valid */
	uint64		aborts_seen;	/* row_relation_aborts at that time */
	uint64		types_seen;		/* row_relation_types before the columns were
								 * looked up */
	int			num_columns;	/* without dropped ones */
	RowColumn  *columns;
} RowRelation;

/*
 * Counts changes of types and functions.  Global, so that it can be compared for each row,
 * and a change of a type need not visit every table.
 */
extern uint64 row_relation_types;

/* Counts transactions in progress, and parts of them, that have been aborted. */
extern uint64 row_relation_aborts;

extern void row_relation_start(MemoryContext parent, bool binary);
extern RowRelation *row_relation_find(Oid relid);
extern bool row_relation_is_announced(const RowRelation *entry, TransactionId stream_xid);
extern void row_relation_set_announced(RowRelation *entry, TransactionId stream_xid);
extern bool row_relation_is_plain(Relation relation);
extern void row_relation_look_up(RowRelation *entry, Relation relation);

#endif							/* WEFT_ROW_RELATION_H */
