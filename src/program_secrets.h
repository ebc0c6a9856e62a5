/*
 * program_secrets.h
 *	  Keeps the secrets of a connection string from the command line of a program.
 */
#ifndef WEFT_PROGRAM_SECRETS_H
#define WEFT_PROGRAM_SECRETS_H

#include "lib/stringinfo.h"
#include "libpq-fe.h"

typedef struct ProgramSecrets
{
	const char *program;		/* for messages */
	PQconninfoOption *options;
	char	   *password_file;	/* NULL while there is none */
	char	   *service_file;	/* the same */
} ProgramSecrets;

extern void program_secrets_parse(ProgramSecrets *secrets, const char *program,
								  const char *conninfo, const char *whose);
extern char *program_secrets_write(ProgramSecrets *secrets, bool must_use_password);
extern void program_secrets_environment(const ProgramSecrets *secrets, bool must_use_password,
										StringInfo command);
extern void program_secrets_remove(ProgramSecrets *secrets);

#endif							/* WEFT_PROGRAM_SECRETS_H */
