/*
 * candidate.h
 *	  Rows of two members of a group that may differ, and what is known of them.
 */
#ifndef WEFT_VERIFY_CANDIDATE_H
#define WEFT_VERIFY_CANDIDATE_H

#include "verify/compare_cut.h"

/* A row on one side, at the last look. */
typedef struct CandidateSide
{
	char	   *version;		/* NULL if there is no row */
	int			same;			/* looks, up to the last one, at which it was
								 * in this version, or at which there was none */
} CandidateSide;

typedef struct Candidate
{
	StoredCandidate *stored;
	CandidateSide sides[2];		/* by CompareSide */
	int			looks;			/* up to the last one, at which both sides
								 * differed */
	bool		decided;		/* it is equal, or a difference */
} Candidate;

typedef struct CandidateTable
{
	CompareTable *table;
	List	   *candidates;		/* of Candidate */
	char	   *signature;		/* of the table's definition at the last look */
} CandidateTable;

/*
 * Loads the candidates of a comparison that has found all of them: a list of CandidateTable,
 * allocated in the current memory context.
 */
extern List *candidates_load(CompareState *state);

/*
 * Looks at the candidates again, in the current transaction.  Stores those that are differences, and
 * removes them and those that are equal now.
 */
extern void candidates_look(CompareState *state, List *tables);

extern int	candidates_left(const CandidateTable *table);

#endif							/* WEFT_VERIFY_CANDIDATE_H */
