/*
 * local_wal.h
 *	  The end of the local WAL.
 */
#ifndef WEFT_LOCAL_WAL_H
#define WEFT_LOCAL_WAL_H

#include "access/xlogdefs.h"

extern XLogRecPtr local_wal_end(void);

#endif							/* WEFT_LOCAL_WAL_H */
