/*
 * subscription_options.h
 *	  Weft's options of CREATE and ALTER SUBSCRIPTION.
 */
#ifndef WEFT_SUBSCRIPTION_OPTIONS_H
#define WEFT_SUBSCRIPTION_OPTIONS_H

extern void subscription_options_install(void);

#endif							/* WEFT_SUBSCRIPTION_OPTIONS_H */
