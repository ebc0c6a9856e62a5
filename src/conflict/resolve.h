/*
 * resolve.h
 *	  Applies one INSERT, UPDATE or DELETE, whatever it finds here.
 */
#ifndef WEFT_RESOLVE_H
#define WEFT_RESOLVE_H

#include "conflict/conflict_types.h"

extern void resolve_insert(Target *target, const Remote *remote);
extern void resolve_update(Target *target, const Remote *remote);
extern void resolve_delete(Target *target, const Remote *remote);

#endif							/* WEFT_RESOLVE_H */
