/*
 * batch_format.h
 *	  The form in which the output plugin sends several messages at once.
 *
 * A batch is the payload of one message of the streaming protocol ('w'):
 *
 *		byte	BATCH_TYPE, which is no type of a logical replication message
 *		byte	flags, BATCH_*
 *
 * and then, one behind the other, the messages as they would have been sent one
 * by one, each from its own 'w' on, with its length in front (uint32).  Numbers
 * are in network byte order.  The time of sending is only in the outer message.
 *
 * With BATCH_LZ4, what is behind the flags is
 *
 *		uint32	length of the messages, all together
 *		byte[]	the messages, as one LZ4 block
 *
 * A batch that would not get smaller is sent without that flag.
 *
 * Between batches, messages may come on their own, as they would without batches:
 * large rows do.
 *
 * While a batch with BATCH_MORE_HELD is the latest that has come, transactions
 * may be held back by the publisher that end before the position that its
 * keepalives tell: the subscriber must not take that for received.
 *
 * The subscriber asks for batches with an option of START_REPLICATION, whose
 * value is the newest version of this form that it can read.  The publisher
 * sends what that version and its own have in common.
 *
 * Since version 2 the subscriber may ask for compression with a further option.
 * A publisher that does not know the option would refuse it: the methods that
 * a publisher knows are the values that weft.compression can have there.
 */
#ifndef WEFT_BATCH_FORMAT_H
#define WEFT_BATCH_FORMAT_H

#define BATCH_TYPE '#'
#define BATCH_MORE_HELD 0x01
#define BATCH_LZ4 0x02			/* since version 2 */

#define BATCH_OPTION "weft_batch_version"
#define BATCH_FIRST_VERSION 1
#define BATCH_LZ4_VERSION 2
#define BATCH_VERSION 2

#define BATCH_COMPRESSION_OPTION "weft_compression"

#endif							/* WEFT_BATCH_FORMAT_H */
