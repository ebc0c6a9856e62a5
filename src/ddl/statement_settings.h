/*
 * statement_settings.h
 *	  Parameters on which the meaning of a schema change depends.
 */
#ifndef WEFT_STATEMENT_SETTINGS_H
#define WEFT_STATEMENT_SETTINGS_H

#include "nodes/pg_list.h"

extern bool statement_settings_include(const char *name);
extern List *statement_settings_get(void);
extern List *statement_settings_copy(List *settings);
extern void statement_settings_set(List *settings);
extern void statement_settings_set_session(List *settings);
extern void statement_settings_check(List *settings, Node *statement);
extern void statement_settings_change(List *settings, const char *name, const char *value);
extern void statement_settings_set_schema(List *settings, const char *schema);

#endif							/* WEFT_STATEMENT_SETTINGS_H */
