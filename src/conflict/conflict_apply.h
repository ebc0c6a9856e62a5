/*
 * conflict_apply.h
 *	  Applying a row change where conflicts are detected.
 */
#ifndef WEFT_CONFLICT_APPLY_H
#define WEFT_CONFLICT_APPLY_H

extern bool conflict_apply(const char *message, int length, bool final);

#endif							/* WEFT_CONFLICT_APPLY_H */
