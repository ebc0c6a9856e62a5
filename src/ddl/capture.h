/*
 * capture.h
 *	  Publishes the schema changes that sessions make.
 */
#ifndef WEFT_CAPTURE_H
#define WEFT_CAPTURE_H

extern void capture_install(void);

#endif							/* WEFT_CAPTURE_H */
