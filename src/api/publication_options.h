/*
 * publication_options.h
 *	  Weft's option of CREATE and ALTER PUBLICATION.
 */
#ifndef WEFT_PUBLICATION_OPTIONS_H
#define WEFT_PUBLICATION_OPTIONS_H

extern void publication_options_install(void);

#endif							/* WEFT_PUBLICATION_OPTIONS_H */
