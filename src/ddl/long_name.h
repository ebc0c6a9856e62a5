/*
 * long_name.h
 *	  Identifiers that servers with different encodings truncate differently.
 */
#ifndef WEFT_LONG_NAME_H
#define WEFT_LONG_NAME_H

#include "ddl/ddl_message.h"

extern void long_name_check(const DdlMessage *message);

#endif							/* WEFT_LONG_NAME_H */
