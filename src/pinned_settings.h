/*
 * pinned_settings.h
 *	  Settings on which the text of a value, and the meaning of a text, depend.
 */
#ifndef WEFT_PINNED_SETTINGS_H
#define WEFT_PINNED_SETTINGS_H

extern char *pinned_settings_command(void);
extern char *pinned_settings_query(void);
extern void pinned_settings_set(void);
extern void pinned_settings_set_local(void);

#endif							/* WEFT_PINNED_SETTINGS_H */
