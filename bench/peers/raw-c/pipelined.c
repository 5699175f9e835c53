/* Many messages under way: what one read brought is answered by one send, as the limit that it is. */

#include <string.h>

#include "raw.h"

static struct frame expected[2];
static uint8_t *out;         /* frames to send, the two messages in turns: two more of them than are under way */
static size_t out_frame;     /* bytes of each */
static uint8_t *buffer;      /* what was received, a reply not yet complete first */
static size_t room, held;
static uint64_t replies, due; /* messages that have come back, and that may be sent by now */
static uint64_t sent_bytes;

/* Sends what is due; returns whether something is left. */
static int send_due(void) {
    uint64_t whole = options.window * out_frame;
    while (sent_bytes < due * out_frame) {
        uint64_t at = sent_bytes % (2 * out_frame), length = due * out_frame - sent_bytes;
        size_t sent = send_now(out + at, length < whole ? length : whole);
        if (!sent) return 1;
        sent_bytes += sent;
    }
    return 0;
}

/* Sends, waits, and takes the replies that have come. */
static void turn(void) {
    if (!wait_for(send_due())) return;
    held += recv_now(buffer + held, room - held);
    size_t taken = 0;
    while (held - taken >= expected[0].length) {
        struct frame *reply = &expected[replies & 1];
        if (memcmp(buffer + taken, reply->data, reply->length)) fail_reply();
        taken += reply->length;
        replies++;
    }
    held -= taken;
    memmove(buffer, buffer + taken, held);
}

static uint64_t step(uint64_t count) {
    uint64_t before = replies;
    while (replies - before < count) {
        due = replies + options.window;
        turn();
    }
    return replies - before;
}

/* Waits for the replies to all that was due. */
static void settle(void) {
    while (replies < due) turn();
}

struct workload open_pipelined(void) {
    uint8_t *message[2];
    two_messages(message, options.size);
    struct frame frame[2];
    for (int i = 0; i < 2; i++) {
        frame[i] = make_frame(BINARY, message[i], options.size, 1);
        expected[i] = make_frame(BINARY, message[i], options.size, 0);
    }
    out_frame = frame[0].length;
    out = must_allocate((options.window + 2) * out_frame);
    for (size_t i = 0; i < options.window + 2; i++) memcpy(out + i * out_frame, frame[i & 1].data, out_frame);
    room = 2 * expected[0].length > READ_SIZE ? 2 * expected[0].length : READ_SIZE;
    buffer = must_allocate(room);
    return (struct workload){.step = step, .settle = settle};
}
