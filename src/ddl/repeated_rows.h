/*
 * repeated_rows.h
 *	  Rows that code of a publisher's schema change stores.
 */
#ifndef WEFT_REPEATED_ROWS_H
#define WEFT_REPEATED_ROWS_H

extern void repeated_rows_install(void);
extern void repeated_rows_begin(void);
extern void repeated_rows_end(void);

#endif							/* WEFT_REPEATED_ROWS_H */
