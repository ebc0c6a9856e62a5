/*
 * gate.h
 *	  Tables of a node group whose local writers are held back for a schema change.
 */
#ifndef WEFT_GATE_H
#define WEFT_GATE_H

#include "replication/logicalrelation.h"
#include "storage/lock.h"

extern void gate_install(void);
extern LogicalRepRelMapEntry *gate_open_relation(LogicalRepRelId relid, LOCKMODE *mode);
extern void gate_apply_early(void);
extern void gate_ask_before_waiting(bool (*function) (void));
extern void gate_lock_table(Oid relid, LOCKMODE mode);
extern void gate_take(int64 lock);
extern void gate_own(int64 lock);
extern int64 gate_own_lock(void);
extern bool gate_locks(int64 lock, Oid relid);
extern void gate_tag(LOCKTAG *tag);

#endif							/* WEFT_GATE_H */
