/*
 * time_expiry.h
 *	  Removes times of rows that no conflict can need.
 */
#ifndef WEFT_TIME_EXPIRY_H
#define WEFT_TIME_EXPIRY_H

extern bool time_expiry_remove(int limit);

#endif							/* WEFT_TIME_EXPIRY_H */
