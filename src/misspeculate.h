/*
 * misspeculate.h
 *	  Giving up an attempt that may have failed only because it was too early.
 */
#ifndef WEFT_MISSPECULATE_H
#define WEFT_MISSPECULATE_H

#include "compat.h"

pg_noreturn extern void misspeculate(const char *reason);

#endif							/* WEFT_MISSPECULATE_H */
