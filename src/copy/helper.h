/*
 * helper.h
 *	  Helpers: the parallel workers that copy a table.
 */
#ifndef WEFT_COPY_HELPER_H
#define WEFT_COPY_HELPER_H

#include "copy/copy_task.h"
#include "replication/walreceiver.h"
#include "storage/dsm.h"
#include "storage/shm_toc.h"

extern PGDLLEXPORT void copy_helper_main(dsm_segment *segment, shm_toc *toc);
extern CopyTask *copy_helpers_run(const CopyTask *task, Size size, WalReceiverConn *conn);

#endif							/* WEFT_COPY_HELPER_H */
