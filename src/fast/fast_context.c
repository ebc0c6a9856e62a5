/*
 * fast_context.c
 *	  What the fast path needs to know of the writer that it works for.
 */
#include "postgres.h"

#include "fast/fast_context.h"

FastContext fast_context;
