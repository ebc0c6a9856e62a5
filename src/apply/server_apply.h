/*
 * server_apply.h
 *	  Drives the server's own apply code, and repairs it after an error.
 */
#ifndef WEFT_SERVER_APPLY_H
#define WEFT_SERVER_APPLY_H

#include "row_change.h"
#include "wire.h"

extern void server_apply_init(void);

extern void server_apply_relation(const char *message, int length);
extern void server_apply_own_relation(const char *message, int length);
extern void server_apply_forget_own_relations(void);
extern const char *server_apply_relation_message(LogicalRepRelId relid, int *length);
extern LogicalRepRelId server_apply_failed_relid(void);
extern bool server_apply_find_relation(LogicalRepRelId relid, WireRelation *relation);

extern void server_apply_change(const RowChange *change);
extern void server_apply_enter(const RowChange *change);
extern void server_apply_leave(void);
extern bool server_apply_busy(void);
extern bool server_apply_names_message(void);

extern void server_apply_attempt(void);
extern void server_apply_repair(void);

#endif							/* WEFT_SERVER_APPLY_H */
