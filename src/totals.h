/*
 * totals.h
 *	  What was counted for each subscription, over all of its apply workers.
 */
#ifndef WEFT_TOTALS_H
#define WEFT_TOTALS_H

typedef struct Totals
{
	uint64		transactions;
	uint64		changes;		/* by writers */
	uint64		worker_starts;	/* apply workers that have become leaders */
	uint64		errors;			/* of apply workers */
} Totals;

extern void totals_request(void);
extern void totals_startup(void);
extern void totals_add(Oid subid, const Totals *amount);

#endif							/* WEFT_TOTALS_H */
