/*
 * membership.h
 *	  Which existing tables enter and leave publications.
 */
#ifndef WEFT_MEMBERSHIP_H
#define WEFT_MEMBERSHIP_H

#include "ddl/ddl_message.h"
#include "nodes/plannodes.h"
#include "publication_settings.h"

extern List *membership_before(Node *statement);
extern bool membership_is_direct(const DdlPublication *publication, Oid relid);
extern void membership_compare(DdlMessage *message, List *before,
							   const DdlPublication *publication);
extern void membership_add_left(DdlMessage *message, const List *relids,
								const DdlPublication *publication);
extern List *membership_of_publication(const char *publication);
extern bool membership_is_via_root(const char *publication);
extern void membership_announce(const char *publication, List *before, bool was_via_root,
								const PlannedStmt *pstmt, const char *source);

#endif							/* WEFT_MEMBERSHIP_H */
