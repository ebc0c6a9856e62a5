/*
 * capture.h
 *	  Publishes the schema changes that sessions make.
 */
#ifndef WEFT_CAPTURE_H
#define WEFT_CAPTURE_H

#include "ddl/ddl_message.h"

extern void capture_install(void);
extern bool capture_request(List *publications);
extern void capture_replay(const DdlMessage *message);

#endif							/* WEFT_CAPTURE_H */
