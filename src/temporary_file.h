/*
 * temporary_file.h
 *	  Small files that only the server's user can read.
 */
#ifndef WEFT_TEMPORARY_FILE_H
#define WEFT_TEMPORARY_FILE_H

extern char *temporary_file_write(const char *purpose, const char *contents);
extern char *temporary_file_read(const char *name);
extern void temporary_file_remove(const char *name);

#endif							/* WEFT_TEMPORARY_FILE_H */
