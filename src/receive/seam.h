/*
 * seam.h
 *	  Where Weft is put between the server and the publisher.
 */
#ifndef WEFT_SEAM_H
#define WEFT_SEAM_H

#include "replication/walreceiver.h"

/* The server's own functions. */
extern WalReceiverFunctionsType *seam_native;

extern void seam_install(void);

#endif							/* WEFT_SEAM_H */
