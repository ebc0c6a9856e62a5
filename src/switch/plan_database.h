/*
 * plan_database.h
 *	  Checks of a switch-over: what else is in both databases, sessions, and settings.
 */
#ifndef WEFT_SWITCH_PLAN_DATABASE_H
#define WEFT_SWITCH_PLAN_DATABASE_H

#include "switch/plan_query.h"

extern void plan_database_run(PlanRun *run);

#endif							/* WEFT_SWITCH_PLAN_DATABASE_H */
