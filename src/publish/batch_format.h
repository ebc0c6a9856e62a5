/*
 * batch_format.h
 *	  The format in which the output plugin sends several messages at once.
 *
 * A batch is the payload of one message of the streaming protocol ('w'):
 *
 *		byte	BATCH_TYPE, which is no type of a logical replication message
 *		byte	flags, BATCH_*
 *
 * and then, one after another, the messages as they would have been sent individually,
 * each from its own 'w' on, preceded by its length (uint32).  Numbers are in network byte
 * order.  Only the outer message has the time of sending.
 *
 * With BATCH_LZ4, the flags are followed by
 *
 *		uint32	total length of the messages
 *		byte[]	the messages, as one LZ4 block
 *
 * A batch that compression would not make smaller is sent without that flag.
 *
 * Between batches, messages may arrive on their own, as they would without batches; large
 * rows do.
 *
 * If the latest batch has BATCH_MORE_HELD, the publisher may be holding back transactions
 * that end before the position in its keepalives.  The subscriber must not take that
 * position as received.
 *
 * If the latest batch has BATCH_SYNCHRONOUS, the publisher counts this stream's walsender among
 * its synchronous standbys, so sessions may be waiting until the subscriber has flushed a
 * transaction.  The subscriber should not let them wait.
 *
 * The subscriber asks for batches with an option of START_REPLICATION, whose value is the
 * newest version of this format that it can read.  The publisher uses only what both that
 * version and its own contain.
 *
 * Since version 2 the subscriber may ask for compression with a further option, which a
 * publisher that does not know it would refuse.  The methods that a publisher knows are the
 * possible values of weft.compression there.
 */
#ifndef WEFT_BATCH_FORMAT_H
#define WEFT_BATCH_FORMAT_H

#define BATCH_TYPE '#'
#define BATCH_MORE_HELD 0x01
#define BATCH_LZ4 0x02			/* since version 2 */
#define BATCH_SYNCHRONOUS 0x04	/* since version 3 */

#define BATCH_OPTION "weft_batch_version"
#define BATCH_FIRST_VERSION 1
#define BATCH_LZ4_VERSION 2
#define BATCH_SYNCHRONOUS_VERSION 3
#define BATCH_VERSION 3

#define BATCH_COMPRESSION_OPTION "weft_compression"

#endif							/* WEFT_BATCH_FORMAT_H */
