/*
 * member.h
 *	  Which transaction of its group a writer is applying.
 */
#ifndef WEFT_MEMBER_H
#define WEFT_MEMBER_H

#include "wire.h"

extern void member_group(uint64 first, bool several);
extern void member_next(uint64 seq);
extern void member_begun(const WireBegin *begin);
extern void member_resume(uint64 seq);
extern void member_resume_newest(void);

#endif							/* WEFT_MEMBER_H */
