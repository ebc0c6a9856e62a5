/*
 * gate_file.c
 *	  Gates that survive a crash of the server.
 *
 * Once a gate is confirmed, no local session may write old rows before the schema change arrives, not even
 * after a crash.  Sessions can connect before any process could have read a table, so the
 * postmaster reads a file.
 */
#include "postgres.h"

#include <unistd.h>

#include "gate_file.h"
#include "miscadmin.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"

#define FILE_NAME "weft_ddl_gates"
#define TEMPORARY_NAME FILE_NAME ".tmp"
#define MAGIC 0x57474131

typedef struct FileHeader
{
	uint32		magic;
	uint32		entry_size;
	uint32		count;
	pg_crc32c	crc;			/* of the entries */
} FileHeader;

static pg_crc32c
checksum(const GateStatus *gates, int count)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, gates, count * sizeof(GateStatus));
	FIN_CRC32C(crc);
	return crc;
}

static void
write_all(int fd, const void *data, size_t length)
{
	errno = 0;
	if (write(fd, data, length) != length)
	{
		if (errno == 0)
			errno = ENOSPC;
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", TEMPORARY_NAME)));
	}
}

/* Replaces what is stored. */
void
gate_file_write(const GateStatus *gates, int count)
{
	FileHeader	header;
	int			fd = OpenTransientFile(TEMPORARY_NAME, O_WRONLY | O_CREAT | O_TRUNC | PG_BINARY);

	if (fd < 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create file \"%s\": %m", TEMPORARY_NAME)));
	header.magic = MAGIC;

	header.entry_size = sizeof(GateStatus);
	header.count = count;
	header.crc = checksum(gates, count);
	write_all(fd, &header, sizeof(header));
	write_all(fd, gates, count * sizeof(GateStatus));
	if (CloseTransientFile(fd) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not close file \"%s\": %m", TEMPORARY_NAME)));

	/* This flushes both. */
	(void) durable_rename(TEMPORARY_NAME, FILE_NAME, ERROR);
}

/*
 * Reads the gates, at most GATE_COUNT; returns how many.  Called by the postmaster, which must
 * start even if the file is unreadable.
 */
int
gate_file_read(GateStatus *gates)
{
	FileHeader	header;
	int			fd = BasicOpenFile(FILE_NAME, O_RDONLY | PG_BINARY);
	ssize_t		size;

	if (fd < 0)
		return 0;
	if (read(fd, &header, sizeof(header)) != sizeof(header) || header.magic != MAGIC ||
		header.entry_size != sizeof(GateStatus) || header.count > GATE_COUNT)
		header.count = 0;
	size = header.count * sizeof(GateStatus);
	if (size > 0 && (read(fd, gates, size) != size ||
					 !EQ_CRC32C(checksum(gates, header.count), header.crc)))
		header.count = 0;
	close(fd);
	if (size > 0 && header.count == 0)
		ereport(WARNING, (errmsg("file \"%s\" is damaged and is ignored", FILE_NAME)));
	return header.count;
}
