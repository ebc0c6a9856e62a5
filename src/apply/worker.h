/*
 * worker.h
 *	  The background worker that a writer is.
 */
#ifndef WEFT_WORKER_H
#define WEFT_WORKER_H

#include "compat.h"

pg_noreturn extern PGDLLEXPORT void worker_main(Datum main_arg);

#endif							/* WEFT_WORKER_H */
