/*
 * ddl_conflict.c
 *	  Schema changes of several members of a node group that have no order.
 *
 * Members A and C make schema changes D and E, of which neither has seen the other (seen.c).  A executes
 * D first, and C executes E first.  Most pairs may be executed in either order.  If a pair changes the same
 * thing, the schemas would differ from then on: two comments, two definitions of a view, two lengths of a
 * column, two new values of an enum, whose order matters.  Therefore the second of the two fails
 * where it arrives, in either order, on all members.
 *
 * What each statement changes is in its message (changes.c).  D and E conflict if they change the same object, unless
 * the table below says that the two changes go with each other.  What is not known to go with anything does not.
 * There is no conflict either if both create the same object, since the server refuses the second one.
 *
 * The same statement.  An application starts on two members at once, and creates its tables on both.  If the text,
 * the role and the settings that matter are the same, then what they make is the same, too, and the second one has nothing to do.
 * Anything else that exists already makes the schema change fail, IF NOT EXISTS included
 * (ddl_make_strict): what has the same name may have other columns.
 *
 * Such an application may execute D1 and D2 on A, and the same E1 and E2 on C, where D1 and D2 conflict
 * with each other: DROP VIEW and CREATE VIEW.  E1 arrives on A: the same as D1, and not later than D1's place.  So only what came before
 * D1 counts.  E2 arrives: D1 came before D2, but E1 was before E2 as well, since it is here
 * ("repeated").  So D1 does not count.  If C has executed E2 before E1, then E2 arrives first, and D1 counts.
 *
 * Concurrency.  D may be made by a session, or be applied by another subscription's writer, at the same time as E is executed here.
 * Neither sees the other's row before it is committed.  If D and E change the same object, they wait for each other's lock on it,
 * or on its row in a catalog, so the second one sees the first one's row once it has been executed.  Therefore
 * it looks twice: before, so that the error is about the conflict and not about its consequences, and after that.
 *
 * Statements with a group lock have seen everything that was made before them.  They are looked at
 * nevertheless: some statements, such as GRANT on a function, are not held back by the lock.
 */
#include "postgres.h"

#include "ddl/ddl_conflict.h"
#include "ddl/unseen.h"
#include "lib/stringinfo.h"

/* What may become of an object, or of the part of it that a DdlChange names. */
typedef enum Word
{
	ALL,						/* everything in the schema is changed */
	CHOSEN,						/* it is new; the server has chosen its name */
	COLUMN,						/* a column is new, changed, or dropped */
	COMMENT,
	DEFINITION,					/* changed in another way */
	DROP,
	GRANT,
	LABEL,						/* security label */
	LIKE,						/* a table is made like it */
	NAME,						/* it has another name or schema */
	NEW,
	OPTIONS,					/* about how rows are stored */
	PART,						/* an index, or the like, of it is new, or
								 * dropped */
	READ,						/* a view is made of it */
	REPLACE,					/* it is new, or has another definition */
	REVOKE,
	USE,						/* default privileges are given to something */
	WITHIN,						/* something in the schema is new, or has
								 * other privileges */
} Word;

#define B(word) (1 << (word))

#define ATTACHED (B(COMMENT) | B(LABEL))
#define RIGHTS (B(GRANT) | B(REVOKE))

/*
 * Which changes go with each other; it is enough if one of the two says so.  Those of the same kind that are marked go
 * with each other if they are about different parts.
 */
static const struct
{
	const char *name;
	int			goes_with;
	bool		by_part;
}			words[] =

{
	[ALL] = {"all", B(NEW) | ATTACHED | RIGHTS | B(DEFINITION), false},
	[CHOSEN] = {"chosen", ATTACHED | RIGHTS | B(COLUMN) | B(DEFINITION) | B(LIKE) | B(OPTIONS) |
	B(PART) | B(READ), false},
	[COLUMN] = {"column", ATTACHED | RIGHTS | B(NEW) | B(OPTIONS) | B(PART), true},
	[COMMENT] = {"comment", RIGHTS | B(LABEL) | B(NEW) | B(OPTIONS) | B(PART) | B(READ) |
	B(REPLACE) | B(DEFINITION), true},
	[DEFINITION] = {"definition", B(NEW) | B(WITHIN), false},
	/* the server refuses the second one, or it has nothing to do */
	[DROP] = {"drop", B(DROP), false},
	[GRANT] = {"grant", B(GRANT) | B(LABEL) | B(LIKE) | B(NEW) | B(OPTIONS) | B(PART) | B(READ) |
	B(REPLACE) | B(WITHIN), false},
	[LABEL] = {"label", RIGHTS | B(LIKE) | B(NEW) | B(OPTIONS) | B(PART) | B(READ) | B(REPLACE) |
	B(DEFINITION), true},
	[LIKE] = {"like", B(LIKE) | B(NEW) | B(READ), false},
	[NAME] = {"name", 0, false},
	/* the server refuses the second one */
	[NEW] = {"new", B(LIKE) | B(NEW) | B(OPTIONS) | B(PART) | B(READ) | B(REVOKE) | B(WITHIN), false},
	[OPTIONS] = {"options", B(PART) | B(READ) | B(REVOKE), false},
	[PART] = {"part", B(DEFINITION) | B(PART) | B(READ) | B(REPLACE) | B(REVOKE), false},
	[READ] = {"read", B(READ) | B(REVOKE), false},
	[REPLACE] = {"replace", B(REVOKE) | B(WITHIN), false},
	[REVOKE] = {"revoke", B(LIKE) | B(WITHIN), false},
	[USE] = {"use", B(USE), false},
	[WITHIN] = {"within", ATTACHED | B(WITHIN), false},
};

/* A word that is not known goes with hardly anything. */
static Word
find_word(const char *name)
{
	for (int i = 0; i < lengthof(words); i++)
		if (strcmp(words[i].name, name) == 0)
			return i;
	return DEFINITION;
}

/* May two changes of the same object be made in either order? */
static bool
go_together(const DdlChange *one, const DdlChange *other)
{
	Word		word = find_word(one->change);
	Word		other_word = find_word(other->change);

	if (word == other_word && words[word].by_part)
		return strcmp(one->part, other->part) != 0;
	return (words[word].goes_with & B(other_word)) != 0 ||
		(words[other_word].goes_with & B(word)) != 0;
}

/* Do two statements create the same object?  Then the server refuses the second one. */
static bool
create_the_same(const DdlMessage *one, const DdlMessage *other)
{
	foreach_ptr(DdlChange, change, one->changes)
		foreach_ptr(DdlChange, other_change, other->changes)
		if (find_word(change->change) == NEW && find_word(other_change->change) == NEW &&
			strcmp(change->object, other_change->object) == 0)
		return true;
	return false;
}

static bool
conflict(const DdlMessage *one, const DdlMessage *other)
{
	if (create_the_same(one, other))
		return false;
	foreach_ptr(DdlChange, change, one->changes)
		foreach_ptr(DdlChange, other_change, other->changes)
		if (strcmp(change->object, other_change->object) == 0 &&
			!go_together(change, other_change))
		return true;
	return false;
}

static const char *
setting_of(const DdlMessage *message, const char *name)
{
	foreach_ptr(DdlSetting, setting, message->settings)
		if (strcmp(setting->name, name) == 0)
		return setting->value;
	return "";
}

/* Most settings are about what a string means. */
static bool
same_settings(const DdlMessage *one, const DdlMessage *other)
{
	static const char *const names[] = {
		"search_path", "default_table_access_method", "default_toast_compression",
	};

	if (strchr(one->statement, '\'') != NULL)
	{
		foreach_ptr(DdlSetting, setting, one->settings)
			if (strcmp(setting->value, setting_of(other, setting->name)) != 0)
			return false;
	}
	for (int i = 0; i < lengthof(names); i++)
		if (strcmp(setting_of(one, names[i]), setting_of(other, names[i])) != 0)
			return false;
	return true;
}

static bool
is_same(const DdlMessage *one, const DdlMessage *other)
{
	return strcmp(one->statement, other->statement) == 0 && strcmp(one->role, other->role) == 0 &&
		strcmp(one->session_role ? one->session_role : "",
			   other->session_role ? other->session_role : "") == 0 &&
		same_settings(one, other);
}

/* Fails if one of the schema changes conflicts with this one. */
static void
check(const DdlMessage *message, const List *others)
{
	foreach_ptr(Unseen, other, others)
	{
		if (other->repeated || is_same(message, other->message) ||
			!conflict(message, other->message))
			continue;
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("the schema change conflicts with one of another member, made at the same time"),
				 errdetail("The other one is: %s", other->message->statement),
				 errhint("Skip the one of the two that is not wanted on each member that gets it, and repeat the other one where that has been executed, with \"weft.ddl_replication\" set to \"off\".")));
	}
}

/*
 * Fails if a schema change is about the same thing as another one that was executed here, and neither
 * has seen the other.  Returns whether the same one was executed here, so that there is nothing to do.
 */
bool
ddl_conflict_check(const DdlMessage *message)
{
	List	   *before = NIL;

	foreach_ptr(Unseen, other, unseen_of(message))
	{
		if (is_same(message, other->message))
		{
			check(message, before);
			ereport(LOG,
					(errmsg("schema change " INT64_FORMAT " of another member has been made here already: %s",
							message->id, message->statement)));
			return true;
		}
		before = lappend(before, other);
	}
	check(message, before);
	return false;
}

/* The same once it has been executed: others may have been committed meanwhile. */
void
ddl_conflict_check_again(const DdlMessage *message)
{
	check(message, unseen_of(message));
}
