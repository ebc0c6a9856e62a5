/*
 * counter_name.h
 *	  Counters stay counters when their columns are renamed.
 */
#ifndef WEFT_COUNTER_NAME_H
#define WEFT_COUNTER_NAME_H

extern void counter_name_install(void);

#endif							/* WEFT_COUNTER_NAME_H */
