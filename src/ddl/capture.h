/*
 * capture.h
 *	  Publishes the schema changes that sessions make.
 */
#ifndef WEFT_CAPTURE_H
#define WEFT_CAPTURE_H

#include "nodes/pg_list.h"

extern void capture_install(void);
extern bool capture_request(List *publications);

#endif							/* WEFT_CAPTURE_H */
