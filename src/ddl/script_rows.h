/*
 * script_rows.h
 *	  Rows that the scripts of extensions change.
 */
#ifndef WEFT_SCRIPT_ROWS_H
#define WEFT_SCRIPT_ROWS_H

extern void script_rows_install(void);
extern bool script_rows_begin(void);
extern void script_rows_end(bool before);

#endif							/* WEFT_SCRIPT_ROWS_H */
