/*
 * row_counts.h
 *	  Compares how many rows the tables of both sides have.
 */
#ifndef WEFT_SWITCH_ROW_COUNTS_H
#define WEFT_SWITCH_ROW_COUNTS_H

#include "switch/switch_attempt.h"

extern char *row_counts_compare(const SwitchAttempt *attempt);

#endif							/* WEFT_SWITCH_ROW_COUNTS_H */
