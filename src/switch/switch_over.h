/*
 * switch_over.h
 *	  Drives the steps of a switch-over, and undoes or completes what has failed.
 */
#ifndef WEFT_SWITCH_SWITCH_OVER_H
#define WEFT_SWITCH_SWITCH_OVER_H

#include "switch/steps.h"

typedef enum SwitchCommand
{
	SWITCH_OVER,
	SWITCH_BACK,
	SWITCH_CANCEL
} SwitchCommand;

extern void switch_over_begin(const char *subscription, SwitchCommand command,
							  const SwitchOptions *options, int timeout);
extern bool switch_over_step(void);

#endif							/* WEFT_SWITCH_SWITCH_OVER_H */
