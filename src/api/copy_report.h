/*
 * copy_progress.h
 *	  The progress of initial copies as text.
 */
#ifndef WEFT_API_COPY_PROGRESS_H
#define WEFT_API_COPY_PROGRESS_H

extern char *copy_report_describe(Oid subid);

#endif							/* WEFT_API_COPY_PROGRESS_H */
