/* Sockets that move prepared frames: what the kernel and the server allow a client, with no library at all.
 *
 * Frames are built before the clock runs, masks included. Plain TCP and IPv4 only. Two ways of waiting: in the system
 * call itself, or, as event loops do, in epoll, then for a socket that does not block.
 */

#ifndef RAW_H
#define RAW_H

#include <stddef.h>
#include <stdint.h>

#include "../native/content.h"
#include "../native/program.h"

#define READ_SIZE 262144
#define TEXT 0x81
#define BINARY 0x82

struct frame {
    uint8_t *data;
    size_t length;
};

struct frame make_frame(uint8_t opcode, const uint8_t *payload, size_t size, int mask);

/* connection.c: the connection of this process, with epoll or without. */
void connect_raw(int with_epoll);
void send_all(const uint8_t *data, size_t length);
/* Receives what is there, at least a byte, at most so many. */
size_t recv_some(uint8_t *data, size_t length);
/* With epoll: sends without waiting; returns how many bytes were taken. */
size_t send_now(const uint8_t *data, size_t length);
/* With epoll: waits until there is something to be received, or, if asked for, room to send; returns whether it is the
 * former. */
int wait_for(int room);
size_t recv_now(uint8_t *data, size_t length);

/* pipelined.c: what only an event loop can do. */
struct workload open_pipelined(void);

#endif
