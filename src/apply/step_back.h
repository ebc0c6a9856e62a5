/*
 * step_back.h
 *	  A writer that was chosen to end a deadlock lets the others go on before it begins again.
 */
#ifndef WEFT_STEP_BACK_H
#define WEFT_STEP_BACK_H

extern void step_back_reset(void);
extern void step_back_note(const ErrorData *error);
extern void step_back(void);

#endif							/* WEFT_STEP_BACK_H */
