/*
 * copy_report.h
 *	  Progress of initial copies, as text.
 */
#ifndef WEFT_COPY_REPORT_H
#define WEFT_COPY_REPORT_H

extern char *copy_report_describe(Oid subid);

#endif							/* WEFT_COPY_REPORT_H */
