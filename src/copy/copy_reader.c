/*
 * copy_reader.c
 *	  Data of COPY TO on another server, as COPY FROM wants it.
 *
 * COPY FROM asks a callback for at least "min_read" bytes; the other server sends one
 * message per row.
 */
#include "postgres.h"

#include "copy/copy_reader.h"
#include "miscadmin.h"
#include "wait_event.h"

/* A COPY TO has been started on the connection, or will be before anything is read. */
void
copy_reader_start(CopyReader *reader, WalReceiverConn *conn)
{
	memset(reader, 0, sizeof(CopyReader));
	reader->conn = conn;
	reader->socket = PGINVALID_SOCKET;
}

/* Waits until there is something on the connection. */
static void
wait_for_data(CopyReader *reader, pgsocket socket)
{
	WaitEvent	event;

	if (reader->events == NULL || reader->socket != socket)
	{
		if (reader->events)
			FreeWaitEventSet(reader->events);
		reader->events = CreateWaitEventSet(CurrentResourceOwner, 3);
		AddWaitEventToSet(reader->events, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
		AddWaitEventToSet(reader->events, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
		AddWaitEventToSet(reader->events, WL_SOCKET_READABLE, socket, NULL, NULL);
		reader->socket = socket;
	}
	if (WaitEventSetWait(reader->events, -1, &event, 1,
						 wait_event_id(WEFT_WAIT_COPY_DATA)) > 0 &&
		event.events == WL_LATCH_SET)
		ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* Receives the next message of the COPY TO that is running. */
CopyReadResult
copy_reader_receive(CopyReader *reader, bool may_wait)
{
	for (;;)
	{
		char	   *buffer;
		pgsocket	socket = PGINVALID_SOCKET;
		int			length = walrcv_receive(reader->conn, &buffer, &socket);

		if (length > 0)
		{
			reader->data = buffer;
			reader->length = length;
			return COPY_READ_MESSAGE;
		}
		if (length < 0)
			return COPY_READ_END;
		if (!may_wait)
			return COPY_READ_NOTHING_YET;
		wait_for_data(reader, socket);
	}
}

/*
 * What COPY FROM calls for data: returns as much as has arrived, but at least "min_read"
 * bytes unless the data ends.
 */
int
copy_reader_read(CopyReader *reader, CopyReadNext next, void *buffer, int min_read,
				 int max_read)
{
	int			copied = 0;

	CHECK_FOR_INTERRUPTS();
	while (copied < max_read)
	{
		int			length;

		if (reader->length == 0 && !next(copied < min_read))
			break;
		length = Min(reader->length, max_read - copied);
		memcpy((char *) buffer + copied, reader->data, length);
		reader->data += length;
		reader->length -= length;
		copied += length;
	}
	return copied;
}

void
copy_reader_end(CopyReader *reader)
{
	if (reader->events)
		FreeWaitEventSet(reader->events);
	reader->events = NULL;
}
