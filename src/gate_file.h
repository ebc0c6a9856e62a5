/*
 * gate_file.h
 *	  Gates that survive a crash of the server.
 */
#ifndef WEFT_GATE_FILE_H
#define WEFT_GATE_FILE_H

#include "gate_status.h"

extern void gate_file_write(const GateStatus *gates, int count);
extern int	gate_file_read(GateStatus *gates);

#endif							/* WEFT_GATE_FILE_H */
