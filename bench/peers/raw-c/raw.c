/* Blocking sockets that move prepared frames: what the kernel and the server allow a client, with no library at all.
 *
 * Frames are built before the clock runs, masks included. Replies and streams are checked as the other peers check
 * them: every reply of a round trip in full; of a stream, the number and content of a message about every 5 ms.
 * The contract of the peers is in METHODOLOGY.md. Plain TCP and IPv4 only.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STEP_SECONDS 0.005
#define READ_SIZE 262144
#define TEXT 0x81
#define BINARY 0x82

/* Prints why there is no result, as JSON, and ends the program. */
static void fail(const char *format, ...) {
    char reason[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    for (char *at = reason; *at; at++)
        if (*at == '"' || *at == '\\' || (unsigned char)*at < ' ') *at = '\'';
    printf("{\"failed\": \"%s\"}\n", reason);
    exit(1);
}

static struct {
    const char *url, *workload;
    size_t size, batch;
    double seconds, warmup;
    long core, server_pid;
} options = {"ws://127.0.0.1:8765/", "round-trip", 256, 1024, 1.0, 0.3, -1, -1};

struct usage {
    double wall, user, system, server;
};

static double wall_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* CPU seconds of all threads of the server; negative if /proc does not tell. */
static double server_cpu(void) {
    char path[64];
    if (options.server_pid < 0) return -1;
    snprintf(path, sizeof path, "/proc/%ld/task", options.server_pid);
    DIR *tasks = opendir(path);
    if (!tasks) return -1;
    double total = 0;
    for (struct dirent *task; (task = readdir(tasks));) {
        long id = strtol(task->d_name, NULL, 10);
        unsigned long long nanoseconds = 0;
        if (id <= 0) continue;
        snprintf(path, sizeof path, "/proc/%ld/task/%ld/schedstat", options.server_pid, id);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        if (fscanf(file, "%llu", &nanoseconds) == 1) total += nanoseconds / 1e9;
        fclose(file);
    }
    closedir(tasks);
    return total > 0 ? total : -1;
}

static struct usage usage_now(void) {
    struct usage reading;
    struct rusage own;
    reading.server = server_cpu();
    getrusage(RUSAGE_SELF, &own);
    reading.user = own.ru_utime.tv_sec + own.ru_utime.tv_usec / 1e6;
    reading.system = own.ru_stime.tv_sec + own.ru_stime.tv_usec / 1e6;
    reading.wall = wall_clock();
    return reading;
}

static void send_all(int sock, const uint8_t *data, size_t length) {
    while (length) {
        ssize_t sent = send(sock, data, length, MSG_NOSIGNAL);
        if (sent < 0) fail("send: %m");
        data += sent;
        length -= sent;
    }
}

static size_t recv_some(int sock, uint8_t *data, size_t length) {
    ssize_t received = recv(sock, data, length, 0);
    if (received < 0) fail("recv: %m");
    if (!received) fail("the server closed the connection");
    return received;
}

static void recv_exactly(int sock, uint8_t *data, size_t length) {
    for (size_t received = 0; received < length;) received += recv_some(sock, data + received, length - received);
}

struct frame {
    uint8_t *data;
    size_t length, head;
};

static struct frame make_frame(uint8_t opcode, const uint8_t *payload, size_t size, int mask) {
    uint8_t key[4] = {0};
    struct frame frame = {malloc(size + 14), 0, 0};
    if (!frame.data) fail("out of memory");
    frame.data[0] = opcode;
    uint8_t bit = mask ? 0x80 : 0;
    int wide = size < 126 ? 0 : size < 65536 ? 2 : 8;
    frame.data[1] = bit | (wide == 0 ? size : wide == 2 ? 126 : 127);
    for (int i = 0; i < wide; i++) frame.data[2 + i] = (uint8_t)((uint64_t)size >> (8 * (wide - 1 - i)));
    frame.head = 2 + wide;
    if (mask) {
        if (getrandom(key, 4, 0) != 4) fail("getrandom: %m");
        memcpy(frame.data + frame.head, key, 4);
        frame.head += 4;
    }
    for (size_t i = 0; i < size; i++) frame.data[frame.head + i] = payload[i] ^ key[i & 3];
    frame.length = frame.head + size;
    return frame;
}

static int connect_to(const char *url) {
    char host[64], target[128] = "/", request[512];
    int port;
    int one = 1;
    if (sscanf(url, "ws://%63[0-9.]:%d%127s", host, &port, target) < 2)
        fail("raw-c takes ws://IPv4:PORT/PATH, not %s", url);
    int sock = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, host, &address.sin_addr);
    if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address)) fail("connect: %m");
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    int length = snprintf(request, sizeof request,
                          "GET %s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                          "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
                          target, host, port);
    send_all(sock, (uint8_t *)request, length);
    /* Byte by byte, so that no frame behind the head is taken. */
    char head[4096];
    size_t received = 0;
    while (received < 4 || memcmp(head + received - 4, "\r\n\r\n", 4)) {
        if (received == sizeof head) fail("the head of the server's answer is too long");
        received += recv_some(sock, (uint8_t *)head + received, 1);
    }
    if (strncmp(head, "HTTP/1.1 101", 12)) fail("the server refused the handshake: %.40s", head);
    return sock;
}

/* What a workload keeps between its steps. */
static int sock;
static struct frame out[2], expected[2], many;
static uint8_t *buffer, *pattern;
static size_t in_frame;  /* bytes of a frame of the stream */
static uint64_t arrived; /* bytes of the stream so far */
static uint64_t sent;    /* messages to the sink so far */

static uint64_t step_round_trip(uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        struct frame *reply = &expected[i & 1];
        send_all(sock, out[i & 1].data, out[i & 1].length);
        recv_exactly(sock, buffer, reply->length);
        if (memcmp(buffer, reply->data, reply->length)) fail("a reply differs from the message that was sent");
    }
    return count;
}

/* Checks the last complete frame in the buffer, if there is one; it ends `behind` bytes before the end of the data. */
static int check_stream(size_t length) {
    size_t behind = arrived % in_frame;
    if (length < behind + in_frame) return 0;
    uint64_t number = arrived / in_frame - 1, carried;
    const uint8_t *payload = buffer + length - behind - options.size;
    memcpy(&carried, payload, 8);
    if (carried != number || memcmp(payload + 8, pattern, options.size - 8))
        fail("message %llu of the stream carries number %llu, or has other content", (unsigned long long)number,
             (unsigned long long)carried);
    return 1;
}

static uint64_t step_stream_in(uint64_t count) {
    uint64_t before = arrived / in_frame, received = 0;
    for (int checked = 0; received < count || !checked;) {
        size_t length = recv_some(sock, buffer, READ_SIZE);
        arrived += length;
        received = arrived / in_frame - before;
        if (received >= count) checked = check_stream(length);
    }
    return received;
}

static uint64_t step_send(uint64_t count) {
    for (uint64_t i = 0; i < count; i++) send_all(sock, out[i & 1].data, out[i & 1].length);
    sent += count;
    return count;
}

static uint64_t step_send_many(uint64_t count) {
    uint64_t calls = count < options.batch ? 1 : count / options.batch;
    for (uint64_t i = 0; i < calls; i++) send_all(sock, many.data, many.length);
    sent += calls * options.batch;
    return calls * options.batch;
}

static void finish_nothing(void) {}

static void finish_sink(void) {
    struct frame question = make_frame(TEXT, (const uint8_t *)"report", 6, 1);
    uint8_t answer[128] = {0};
    unsigned long long messages = 0, bytes = 0;
    send_all(sock, question.data, question.length);
    free(question.data);
    recv_exactly(sock, answer, 2);
    if (answer[0] != TEXT || answer[1] > 100) fail("/sink did not answer with a short text");
    recv_exactly(sock, answer + 2, answer[1]);
    if (sscanf((char *)answer + 2, " { \"messages\" : %llu , \"bytes\" : %llu }", &messages, &bytes) != 2)
        fail("/sink answered %s", (char *)answer + 2);
    if (messages != sent || bytes != sent * options.size)
        fail("/sink received %llu messages, sent were %llu", messages, (unsigned long long)sent);
}

typedef uint64_t (*step_function)(uint64_t count);
typedef void (*finish_function)(void);

static void prepare(step_function *step, finish_function *finish) {
    uint8_t *message[2] = {malloc(options.size), malloc(options.size)};
    size_t room = options.size + 14 > READ_SIZE ? options.size + 14 : READ_SIZE;
    buffer = malloc(room);
    if (!message[0] || !message[1] || !buffer) fail("out of memory");
    for (size_t i = 0; i < options.size; i++) message[1][i] = ~(message[0][i] = (uint8_t)(i * 7));
    for (int i = 0; i < 2; i++) {
        out[i] = make_frame(BINARY, message[i], options.size, 1);
        expected[i] = make_frame(BINARY, message[i], options.size, 0);
    }
    in_frame = expected[0].length;
    *finish = finish_nothing;
    if (!strcmp(options.workload, "round-trip")) {
        *step = step_round_trip;
    } else if (!strcmp(options.workload, "stream-in") || !strcmp(options.workload, "stream-in-many")) {
        if (options.size < 8 || in_frame > READ_SIZE) fail("raw-c streams sizes from 8 to %d", READ_SIZE - 14);
        pattern = malloc(options.size);
        if (!pattern) fail("out of memory");
        for (size_t i = 8; i < options.size; i++) pattern[i - 8] = (uint8_t)i;
        *step = step_stream_in;
    } else if (!strcmp(options.workload, "send")) {
        *step = step_send;
        *finish = finish_sink;
    } else if (!strcmp(options.workload, "send-many")) {
        many.length = options.batch * out[0].length;
        many.data = malloc(many.length);
        if (!many.data) fail("out of memory");
        for (size_t i = 0; i < options.batch; i++)
            memcpy(many.data + i * out[0].length, out[i & 1].data, out[0].length);
        *step = step_send_many;
        *finish = finish_sink;
    } else {
        fail("raw-c has no workload %s", options.workload);
    }
    sock = connect_to(options.url);
}

static void measure(void) {
    step_function step;
    finish_function finish;
    prepare(&step, &finish);

    uint64_t count = 2, total = 0;
    double end = wall_clock() + options.warmup;
    for (;;) {
        double since = wall_clock();
        step(count);
        double now = wall_clock();
        if (now - since < STEP_SECONDS / 2) count *= 2;
        else if (now >= end) break;
    }
    finish();

    struct usage since = usage_now();
    end = since.wall + options.seconds;
    while (wall_clock() < end) total += step(count);
    finish();
    struct usage until = usage_now();

    char server[32] = "null";
    if (since.server >= 0 && until.server >= 0) snprintf(server, sizeof server, "%.9f", until.server - since.server);
    printf("{\"count\": %llu, \"seconds\": %.9f, \"user\": %.6f, \"system\": %.6f, \"server\": %s, \"checked\": true, "
           "\"version\": \"cc " __VERSION__ "\"}\n",
           (unsigned long long)total, until.wall - since.wall, until.user - since.user, until.system - since.system,
           server);
}

int main(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        const char *name = arguments[i];
        if (!strcmp(name, "--probe")) {
            puts("{\"version\": \"cc " __VERSION__ "\", \"tls\": false, "
                 "\"workloads\": [\"round-trip\", \"stream-in\", \"stream-in-many\", \"send\", \"send-many\"]}");
            return 0;
        }
        if (++i == count) fail("%s needs a value", name);
        const char *value = arguments[i];
        if (!strcmp(name, "--url")) options.url = value;
        else if (!strcmp(name, "--workload")) options.workload = value;
        else if (!strcmp(name, "--size")) options.size = strtoul(value, NULL, 10);
        else if (!strcmp(name, "--batch")) options.batch = strtoul(value, NULL, 10);
        else if (!strcmp(name, "--seconds")) options.seconds = strtod(value, NULL);
        else if (!strcmp(name, "--warmup")) options.warmup = strtod(value, NULL);
        else if (!strcmp(name, "--core")) options.core = strtol(value, NULL, 10);
        else if (!strcmp(name, "--server-pid")) options.server_pid = strtol(value, NULL, 10);
        else fail("unknown option %s", name);
    }
    if (options.core >= 0) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET(options.core, &cores);
        if (sched_setaffinity(0, sizeof cores, &cores)) fail("cannot run on core %ld: %m", options.core);
    }
    measure();
    return 0;
}
