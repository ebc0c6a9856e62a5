/*
 * matview_data.h
 *	  Whether a new materialized view can be filled.
 */
#ifndef WEFT_MATVIEW_DATA_H
#define WEFT_MATVIEW_DATA_H

#include "nodes/nodes.h"

extern void matview_data_choose(Node *statement);

#endif							/* WEFT_MATVIEW_DATA_H */
