/*
 * weft_injection.c
 *	  Holding a process at an injection point, as if the operating system did.
 *
 * The server's own module for that, injection_points, waits for a condition variable.
 * That is no good for Weft's windows: such a wait resets the process's latch, so a
 * wake-up that was sent meanwhile is lost; it handles interrupts where the code
 * around has none; and outside a transaction the process may not be terminated in it.
 * A process that is held here just sleeps, and does nothing else, until its file is gone.
 *
 * Its wait event has the name of the point, so pg_stat_activity shows who is held where.
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "compat.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/pmsignal.h"
#include "utils/builtins.h"
#include "utils/wait_event.h"

/* How often a process that is held looks whether it may go on, in microseconds. */
#define LOOK_INTERVAL 1000

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(injection_attach);
PG_FUNCTION_INFO_V1(injection_detach);
PG_FUNCTION_INFO_V1(injection_open);
PG_FUNCTION_INFO_V1(injection_release);

extern PGDLLEXPORT void injection_hold(COMPAT_INJECTION_ARGUMENTS);
extern PGDLLEXPORT void injection_fail(COMPAT_INJECTION_ARGUMENTS);
extern PGDLLEXPORT void injection_end(COMPAT_INJECTION_ARGUMENTS);
extern PGDLLEXPORT void injection_hold_end(COMPAT_INJECTION_ARGUMENTS);

/*
 * The file that is there while a process is held; in the data directory.  Whoever
 * releases the process renames it, and waits until the process has seen that.
 */
static void
file_name(char *name, int pid, bool released)
{
	snprintf(name, MAXPGPATH, "weft_injection.%d%s", pid, released ? ".released" : "");
}

/* The file that is there while nobody is held at a point any more, as injection_open() says. */
static void
open_name(char *name, const char *point)
{
	snprintf(name, MAXPGPATH, "weft_injection_open.%s", point);
}

static bool
exists(const char *file)
{
	struct stat status;

	return stat(file, &status) == 0;
}

static void
hold(const char *name)
{
	char		file[MAXPGPATH];
	char		released[MAXPGPATH];
	char		open[MAXPGPATH];
	int			fd;

	file_name(file, MyProcPid, false);
	file_name(released, MyProcPid, true);
	open_name(open, name);
	fd = BasicOpenFile(file, O_CREAT | O_RDWR);
	if (fd < 0)
		elog(ERROR, "could not create file \"%s\": %m", file);
	close(fd);
	pgstat_report_wait_start(WaitEventInjectionPointNew(name));
	while (exists(file) && !exists(open))
	{
		if (!PostmasterIsAlive())
			_exit(1);
		pg_usleep(LOOK_INTERVAL);
	}
	pgstat_report_wait_end();
	unlink(file);
	unlink(released);
}

/* What a process does at a point with action "hold". */
void
injection_hold(COMPAT_INJECTION_ARGUMENTS)
{
	hold(name);
}

/* The same for "error". */
void
injection_fail(COMPAT_INJECTION_ARGUMENTS)
{
	elog(ERROR, "error injected at %s", name);
}

/* The same for "end": as if the process was terminated. */
void
injection_end(COMPAT_INJECTION_ARGUMENTS)
{
	elog(FATAL, "process ended at %s", name);
}

/* The same for "hold_end": it ends when it is released. */
void
injection_hold_end(COMPAT_INJECTION_ARGUMENTS)
{
	hold(name);
	elog(FATAL, "process ended at %s", name);
}

/* Returns the function for an action. */
static const char *
function_for(const char *action)
{
	if (strcmp(action, "hold") == 0)
		return "injection_hold";
	if (strcmp(action, "error") == 0)
		return "injection_fail";
	if (strcmp(action, "end") == 0)
		return "injection_end";
	if (strcmp(action, "hold_end") == 0)
		return "injection_hold_end";
	elog(ERROR, "there is no action \"%s\"", action);
}

Datum
injection_attach(PG_FUNCTION_ARGS)
{
	char	   *point = text_to_cstring(PG_GETARG_TEXT_PP(0));
	char	   *action = text_to_cstring(PG_GETARG_TEXT_PP(1));
	char		open[MAXPGPATH];

	open_name(open, point);
	unlink(open);
	InjectionPointAttach(point, "weft_injection", function_for(action), NULL, 0);
	PG_RETURN_VOID();
}

Datum
injection_detach(PG_FUNCTION_ARGS)
{
	char	   *point = text_to_cstring(PG_GETARG_TEXT_PP(0));

	if (!InjectionPointDetach(point))
		elog(ERROR, "injection point \"%s\" is not attached", point);
	PG_RETURN_VOID();
}

/*
 * Lets all processes go on that are held at a point, also one that has not reported yet that
 * it is held: it may have looked the point up before this was detached.
 */
Datum
injection_open(PG_FUNCTION_ARGS)
{
	char		file[MAXPGPATH];
	int			fd;

	open_name(file, text_to_cstring(PG_GETARG_TEXT_PP(0)));
	fd = BasicOpenFile(file, O_CREAT | O_RDWR);
	if (fd < 0)
		elog(ERROR, "could not create file \"%s\": %m", file);
	close(fd);
	PG_RETURN_VOID();
}

Datum
injection_release(PG_FUNCTION_ARGS)
{
	int			pid = PG_GETARG_INT32(0);
	char		file[MAXPGPATH];
	char		released[MAXPGPATH];

	file_name(file, pid, false);
	file_name(released, pid, true);
	if (rename(file, released) != 0)
		elog(ERROR, "process %d is not held: %m", pid);
	while (exists(released))
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(LOOK_INTERVAL);
	}
	PG_RETURN_VOID();
}
