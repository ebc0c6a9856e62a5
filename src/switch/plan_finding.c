/*
 * plan_finding.c
 *	  What the checks of a switch-over find.
 */
#include "postgres.h"

#include "switch/plan_finding.h"

/* Appends a finding to a list of them.  The strings are not copied. */
List *
plan_finding_add(List *findings, const char *check, PlanSeverity severity,
				 const char *object, const char *problem, const char *remedy)
{
	PlanFinding *finding = palloc(sizeof(PlanFinding));

	finding->check = check;
	finding->severity = severity;
	finding->object = object;
	finding->problem = problem;
	finding->remedy = remedy;
	return lappend(findings, finding);
}
