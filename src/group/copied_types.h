/*
 * copied_types.h
 *	  Are types of the member that is copied still what the snapshot has?
 */
#ifndef WEFT_COPIED_TYPES_H
#define WEFT_COPIED_TYPES_H

#include "group/remote.h"

extern char *copied_types_changed(Remote *source, Remote *now);

#endif							/* WEFT_COPIED_TYPES_H */
