/*
 * gate_worker.h
 *	  The background worker that holds the tables of a gate.
 */
#ifndef WEFT_GATE_WORKER_H
#define WEFT_GATE_WORKER_H

extern void gate_worker_install(void);
extern void gate_worker_start(int64 lock);

#endif							/* WEFT_GATE_WORKER_H */
