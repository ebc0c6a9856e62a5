/*
 * session_worker.h
 *	  Background workers that do something on behalf of a session, which waits for them.
 */
#ifndef WEFT_VERIFY_SESSION_WORKER_H
#define WEFT_VERIFY_SESSION_WORKER_H

#include "postmaster/bgworker.h"
#include "ring/failure.h"
#include "storage/dsm.h"

extern BackgroundWorkerHandle *session_worker_start(const char *name, const char *type,
													const char *function, dsm_segment *segment);
extern void session_worker_terminate(int code, Datum handle);
extern void *session_worker_attach(Datum main_arg);
extern void session_worker_report(Failure *failure);

#endif							/* WEFT_VERIFY_SESSION_WORKER_H */
