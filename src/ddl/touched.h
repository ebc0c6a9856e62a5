/*
 * touched.h
 *	  Which objects a statement creates, alters and drops.
 */
#ifndef WEFT_TOUCHED_H
#define WEFT_TOUCHED_H

#include "ddl/touched_look.h"

extern void touched_install(void);
extern Touched *touched_begin(Touched *touched, MemoryContext context);
extern void touched_object(Oid class_id, Oid object_id, int sub_id);
extern void touched_new_relation(Oid relid);
extern void touched_end(Touched *outer);
extern void touched_finish(Touched *touched);

#endif							/* WEFT_TOUCHED_H */
