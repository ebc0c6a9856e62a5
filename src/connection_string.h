/*
 * connection_string.h
 *	  Checks connection strings without showing them.
 */
#ifndef WEFT_CONNECTION_STRING_H
#define WEFT_CONNECTION_STRING_H

extern void connection_string_check(const char *dsn, const char *whose, bool must_use_password);

#endif							/* WEFT_CONNECTION_STRING_H */
