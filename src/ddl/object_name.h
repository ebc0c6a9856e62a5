/*
 * object_name.h
 *	  Objects as statements name them.
 */
#ifndef WEFT_OBJECT_NAME_H
#define WEFT_OBJECT_NAME_H

extern char *object_type(Oid class_id, Oid object_id);
extern char *object_name(Oid class_id, Oid object_id);

#endif							/* WEFT_OBJECT_NAME_H */
