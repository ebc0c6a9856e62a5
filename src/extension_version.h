/*
 * extension_version.h
 *	  The version of the extension in a database, next to that of the library.
 */
#ifndef WEFT_EXTENSION_VERSION_H
#define WEFT_EXTENSION_VERSION_H

extern void extension_version_report(void);
extern void extension_version_require(void);

#endif							/* WEFT_EXTENSION_VERSION_H */
