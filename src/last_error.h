/*
 * last_error.h
 *	  The last error of every subscription's apply worker.
 */
#ifndef WEFT_LAST_ERROR_H
#define WEFT_LAST_ERROR_H

#include "access/xlogdefs.h"

extern void last_error_request(void);
extern void last_error_startup(void);
extern void last_error_install(void);
extern void last_error_set_subject(XLogRecPtr lsn);
extern bool last_error_overcome(Oid subid, XLogRecPtr applied);
extern char *last_error_describe(Oid subid);

#endif							/* WEFT_LAST_ERROR_H */
