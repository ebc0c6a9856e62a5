/*
 * plan_finding.h
 *	  What the checks of a switch-over find.
 */
#ifndef WEFT_SWITCH_PLAN_FINDING_H
#define WEFT_SWITCH_PLAN_FINDING_H

#include "nodes/pg_list.h"

typedef enum PlanSeverity
{
	PLAN_OK,					/* the check has found nothing; the only
								 * finding of its check */
	PLAN_WARNING,
	PLAN_ERROR					/* a switch-over would fail, or lose something */
} PlanSeverity;

typedef struct PlanFinding
{
	const char *check;			/* name of the check, such as "lag" */
	PlanSeverity severity;
	const char *object;			/* what it is about, quoted where SQL wants
								 * it; may be NULL */
	const char *problem;		/* NULL if severity is PLAN_OK */
	const char *remedy;			/* SQL or a sentence; may be NULL */
} PlanFinding;

extern List *plan_finding_add(List *findings, const char *check, PlanSeverity severity,
							  const char *object, const char *problem, const char *remedy);

#endif							/* WEFT_SWITCH_PLAN_FINDING_H */
