/*
 * plan_replication.h
 *	  Checks of a switch-over: the subscription, and what the way back needs.
 */
#ifndef WEFT_SWITCH_PLAN_REPLICATION_H
#define WEFT_SWITCH_PLAN_REPLICATION_H

#include "switch/plan_query.h"

extern void plan_replication_run(PlanRun *run);

#endif							/* WEFT_SWITCH_PLAN_REPLICATION_H */
