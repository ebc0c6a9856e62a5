/*
 * subscription_options.h
 *	  Options of CREATE and ALTER SUBSCRIPTION that are ours.
 */
#ifndef WEFT_SUBSCRIPTION_OPTIONS_H
#define WEFT_SUBSCRIPTION_OPTIONS_H

extern void subscription_options_install(void);

#endif							/* WEFT_SUBSCRIPTION_OPTIONS_H */
