/*
 * schema_wait.h
 *	  Waiting for a schema change that another member of the group has still to bring.
 */
#ifndef WEFT_SCHEMA_WAIT_H
#define WEFT_SCHEMA_WAIT_H

#include "row_change.h"

extern void schema_wait_check_filters(void);
extern void schema_wait_begin(uint64 seq);
extern bool schema_wait_relation(const char *message, int length);
extern bool schema_wait_change(const char *message, int length);
extern bool schema_wait_ignores(const RowChange *change);
extern void schema_wait_note_failed(void);
extern bool schema_wait_after_error(const ErrorData *error);
extern void schema_wait(void);

#endif							/* WEFT_SCHEMA_WAIT_H */
