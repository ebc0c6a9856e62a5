/*
 * cache_line.h
 *	  Asking the processor for memory before it is needed.
 */
#ifndef WEFT_CACHE_LINE_H
#define WEFT_CACHE_LINE_H

/* The processor fetches this much at a time. */
#define CACHE_LINE 64

/* Starts to fetch memory that is needed soon.  Any address will do: nothing is read. */
static inline void
cache_line_prefetch(const void *memory)
{
	__builtin_prefetch(memory);
}

#endif							/* WEFT_CACHE_LINE_H */
