/*
 * plan_tables.h
 *	  Checks of a switch-over: the tables that are replicated, and what belongs to them.
 */
#ifndef WEFT_SWITCH_PLAN_TABLES_H
#define WEFT_SWITCH_PLAN_TABLES_H

#include "switch/plan_query.h"

extern void plan_tables_run(PlanRun *run);

#endif							/* WEFT_SWITCH_PLAN_TABLES_H */
