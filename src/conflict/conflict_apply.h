/*
 * conflict_apply.h
 *	  Applies a row change of a subscription that detects conflicts.
 */
#ifndef WEFT_CONFLICT_APPLY_H
#define WEFT_CONFLICT_APPLY_H

extern bool conflict_apply(const char *message, int length, bool final);

#endif							/* WEFT_CONFLICT_APPLY_H */
