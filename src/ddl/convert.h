/*
 * convert.h
 *	  Replaces statements whose text cannot be repeated.
 */
#ifndef WEFT_CONVERT_H
#define WEFT_CONVERT_H

#include "nodes/plannodes.h"

/* How the executor tells of rows; both are called in the process that stores them. */
typedef struct ConvertSteps
{
	bool		(*capturing) (void);	/* is a schema change being executed? */
	void		(*rows_follow) (void);	/* it is about to store rows */
} ConvertSteps;

extern void convert_install(const ConvertSteps *steps);
extern char *convert_text(const PlannedStmt *pstmt, const char *source, List *settings);
extern const char *convert_current_value(Node *statement);
extern char *convert_table(const List *created);
extern char *convert_index(const List *created, bool concurrently, bool if_not_exists);
extern bool convert_may_be_gone(Node *statement);

#endif							/* WEFT_CONVERT_H */
