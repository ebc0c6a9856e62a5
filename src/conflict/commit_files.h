/*
 * commit_files.h
 *	  Commit timestamps of another server's files.
 */
#ifndef WEFT_COMMIT_FILES_H
#define WEFT_COMMIT_FILES_H

extern int	commit_files_restore(const char *directory, uint64 server);

#endif							/* WEFT_COMMIT_FILES_H */
