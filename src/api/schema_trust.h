/*
 * schema_trust.h
 *	  Which functions and types a publisher's tables may use here.
 */
#ifndef WEFT_SCHEMA_TRUST_H
#define WEFT_SCHEMA_TRUST_H

#include "nodes/nodes.h"

extern const char *schema_trust_problem(Node *tree);

#endif							/* WEFT_SCHEMA_TRUST_H */
