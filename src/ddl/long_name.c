/*
 * long_name.c
 *	  Identifiers that servers with different encodings truncate differently.
 *
 * A server truncates identifiers of more than 63 bytes.  The text of a schema change is converted into the
 * encoding of the subscriber's database.  There, an identifier that is not ASCII may have more than 63 bytes,
 * though it had fewer on the publisher; or it had more on the publisher, and has fewer here.  In both cases it would name
 * something else than on the publisher, perhaps something that exists.  Therefore the schema change fails.
 *
 * An identifier with Unicode escapes is longer in the text than in a catalog, so it may be refused needlessly.
 */
#include "postgres.h"

#include "common/string.h"
#include "ddl/long_name.h"
#include "mb/pg_wchar.h"
#include "parser/scanner.h"

/*
 * Returns the identifier that a token of the text is, without quotes, and before it is truncated; NULL if it is
 * something else, such as a string, or ASCII.
 */
static char *
identifier_of(const char *token)
{
	char	   *result;
	char	   *end;

	if (pg_is_ascii(token) || strchr("'$", token[0]) != NULL ||
		(strchr("eEbBxXnN", token[0]) != NULL && token[1] == '\'') ||
		(strchr("uU", token[0]) != NULL && token[1] == '&' && token[2] == '\''))
		return NULL;
	if (token[0] != '"')
		return pstrdup(token);
	result = palloc(strlen(token));
	end = result;
	for (const char *next = token + 1; *next != '\0'; next++)
	{
		if (*next == '"' && *++next != '"')
			break;
		*end++ = *next;
	}
	*end = '\0';
	return result;
}

static void
check(const char *identifier, int encoding)
{
	int			length = strlen(identifier);
	char	   *there;

	there = (char *) pg_do_encoding_conversion((unsigned char *) unconstify(char *, identifier),
											   length, GetDatabaseEncoding(), encoding);
	if (length < NAMEDATALEN && strlen(there) < NAMEDATALEN)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_NAME_TOO_LONG),
			 errmsg("identifier \"%s\" is too long", identifier),
			 errdetail("It has %d bytes in the encoding \"%s\" of this database, and %d in \"%s\" of the publisher's.  One with more than %d bytes would be truncated.",
					   length, GetDatabaseEncodingName(), (int) strlen(there),
					   pg_encoding_to_char(encoding), NAMEDATALEN - 1),
			 errhint("Use shorter identifiers.")));
}

/*
 * Fails if the statement has an identifier that means something else here than on the publisher.  Called under the
 * settings of the statement.
 */
void
long_name_check(const DdlMessage *message)
{
	int			encoding = message->encoding ? pg_char_to_encoding(message->encoding) : -1;
	core_yyscan_t scanner;
	core_yy_extra_type extra;
	core_YYSTYPE value;
	YYLTYPE		location;

	if (encoding < 0 || encoding == GetDatabaseEncoding() || encoding == PG_SQL_ASCII ||
		GetDatabaseEncoding() == PG_SQL_ASCII)
		return;
	scanner = scanner_init(message->statement, &extra, &ScanKeywords, ScanKeywordTokens);
	while (core_yylex(&value, &location, scanner) != 0)
	{
		/* The scanner has terminated the token. */
		char	   *identifier = identifier_of(extra.scanbuf + location);

		if (identifier != NULL)
			check(identifier, encoding);
	}
	scanner_finish(scanner);
}
