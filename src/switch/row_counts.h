/*
 * row_counts.h
 *	  Compares how many rows the tables of both sides have.
 */
#ifndef WEFT_SWITCH_ROW_COUNTS_H
#define WEFT_SWITCH_ROW_COUNTS_H

#include "switch/attempt.h"

extern char *row_counts_compare(const Attempt *attempt);

#endif							/* WEFT_SWITCH_ROW_COUNTS_H */
