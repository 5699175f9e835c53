/* The workloads that go one way at a time. Replies and streams are checked as the other peers check them: every reply
 * of a round trip in full; of a stream, the number and content of a message about every 5 ms.
 */

#include <string.h>

#include "raw.h"

/* What a workload keeps between its steps. */
static struct frame out[2], expected[2], many;
static uint8_t *buffer;
static size_t in_frame;  /* bytes of a frame of the stream */
static uint64_t arrived; /* bytes of the stream so far */
static uint64_t sent;    /* messages to the sink so far */
static uint64_t turn;    /* round trips so far */

static void recv_exactly(uint8_t *data, size_t length) {
    for (size_t received = 0; received < length;) received += recv_some(data + received, length - received);
}

static uint64_t step_round_trip(uint64_t count) {
    for (uint64_t i = 0; i < count; i++, turn++) {
        struct frame *reply = &expected[turn & 1];
        send_all(out[turn & 1].data, out[turn & 1].length);
        recv_exactly(buffer, reply->length);
        if (memcmp(buffer, reply->data, reply->length)) fail_reply();
    }
    return count;
}

/* Checks the last complete frame in the buffer, if there is one; it ends `behind` bytes before the end of the data. */
static int check_last(size_t length) {
    size_t behind = arrived % in_frame;
    if (length < behind + in_frame) return 0;
    check_stream(buffer + length - behind - options.size, options.size, arrived / in_frame - 1);
    return 1;
}

static uint64_t step_stream_in(uint64_t count) {
    uint64_t before = arrived / in_frame, received = 0;
    for (int checked = 0; received < count || !checked;) {
        size_t length = recv_some(buffer, READ_SIZE);
        arrived += length;
        received = arrived / in_frame - before;
        if (received >= count) checked = check_last(length);
    }
    return received;
}

static uint64_t step_send(uint64_t count) {
    for (uint64_t i = 0; i < count; i++) send_all(out[i & 1].data, out[i & 1].length);
    sent += count;
    return count;
}

static uint64_t step_send_many(uint64_t count) {
    uint64_t calls = count < options.batch ? 1 : count / options.batch;
    for (uint64_t i = 0; i < calls; i++) send_all(many.data, many.length);
    sent += calls * options.batch;
    return calls * options.batch;
}

static void finish_sink(void) {
    struct frame question = make_frame(TEXT, (const uint8_t *)"report", 6, 1);
    uint8_t answer[128] = {0};
    send_all(question.data, question.length);
    recv_exactly(answer, 2);
    if (answer[0] != TEXT || answer[1] > 100) fail("/sink did not answer with a short text");
    recv_exactly(answer + 2, answer[1]);
    check_sink((char *)answer + 2, sent);
}

static struct workload open_workload(void) {
    uint8_t *message[2];
    two_messages(message, options.size);
    for (int i = 0; i < 2; i++) {
        out[i] = make_frame(BINARY, message[i], options.size, 1);
        expected[i] = make_frame(BINARY, message[i], options.size, 0);
    }
    in_frame = expected[0].length;
    buffer = must_allocate(in_frame > READ_SIZE ? in_frame : READ_SIZE);
    if (!strcmp(options.workload, "round-trip")) return (struct workload){.step = step_round_trip, .timed = 1};
    if (!strcmp(options.workload, "send") || !strcmp(options.workload, "send-each"))
        return (struct workload){.step = step_send, .finish = finish_sink};
    if (!strcmp(options.workload, "send-many")) {
        many.data = must_allocate(options.batch * out[0].length);
        for (size_t i = 0; i < options.batch; i++, many.length += out[0].length)
            memcpy(many.data + many.length, out[i & 1].data, out[0].length);
        return (struct workload){.step = step_send_many, .finish = finish_sink};
    }
    if (in_frame > READ_SIZE) fail("raw-c streams sizes up to %d", READ_SIZE - 14);
    return (struct workload){.step = step_stream_in};
}

static struct workload open_blocking(void) {
    connect_raw(0);
    return open_workload();
}

static struct workload open_epoll(void) {
    connect_raw(1);
    return strcmp(options.workload, "pipelined") ? open_workload() : open_pipelined();
}

int main(int count, char **arguments) {
    static const struct style styles[] = {
        {NULL, "round-trip stream-in stream-in-many send send-each send-many", open_blocking},
        {"epoll", "round-trip stream-in send send-each pipelined", open_epoll},
        {0},
    };
    return run(count, arguments, "cc " __VERSION__, 0, styles);
}
