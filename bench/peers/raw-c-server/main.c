/* The least that a WebSocket server can do, on epoll: what the kernel and the load allow a server, with no library.
 *
 * It takes the request of a client apart as far as path and key, and answers a close frame. What comes it echoes; at
 * /sink it counts it, and sends the count to a client that sends text; at /fan-out all clients there get it. It checks nothing
 * that the load does not do wrong: no limits, no UTF-8, no fragments, no timeouts. IPv4 and plain TCP only, at most
 * MOST connections. One recv, one send and one look at epoll for whatever is ready, as in the servers it stands beside.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 65536
#define READ_SIZE 262144
#define EVENTS 1024
#define BACKLOG 4096

enum role { ECHO, SINK, FAN_OUT };

struct connection {
    int open;         /* the opening handshake is answered */
    enum role role;
    uint64_t messages, bytes; /* that a sink has counted */
    uint8_t *kept;    /* the start of a frame, or of a request */
    size_t length;
    uint8_t *unsent;  /* what the kernel had no room for */
    size_t left;
};

static struct connection connections[MOST];
static uint8_t input[READ_SIZE * 2], output[READ_SIZE * 2];
static int poll_fd;
/* The clients at /fan-out. */
static int audience[MOST], listeners;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void watch(int fd, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (epoll_ctl(poll_fd, operation, fd, &event) < 0) fail("epoll_ctl");
}

static void end(int fd) {
    if (connections[fd].role == FAN_OUT) {
        int at = 0;
        while (audience[at] != fd) at++;
        audience[at] = audience[--listeners];
    }
    free(connections[fd].kept);
    free(connections[fd].unsent);
    connections[fd] = (struct connection){0};
    close(fd);
}

/* Sends, or keeps what there is no room for. */
static void send_or_keep(int fd, const uint8_t *data, size_t length) {
    struct connection *c = &connections[fd];
    ssize_t sent = c->left ? 0 : send(fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) sent = 0; /* an error shows again when it is read */
    size_t rest = length - (size_t)sent;
    if (!rest) return;
    if (!c->left) watch(fd, EPOLL_CTL_MOD, EPOLLOUT);
    c->unsent = realloc(c->unsent, c->left + rest);
    memcpy(c->unsent + c->left, data + sent, rest);
    c->left += rest;
}

/* Nothing is read while something has yet to be sent. */
static void send_kept(int fd) {
    struct connection *c = &connections[fd];
    ssize_t sent = send(fd, c->unsent, c->left, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno != EAGAIN) end(fd);
        return;
    }
    c->left -= (size_t)sent;
    memmove(c->unsent, c->unsent + sent, c->left);
    if (!c->left) watch(fd, EPOLL_CTL_MOD, EPOLLIN);
}

/* Answers a request; how many bytes it has, 0 while it is incomplete. */
static size_t answer(int fd, uint8_t *data, size_t length) {
    static const char name[] = "Sec-WebSocket-Key: ", guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    uint8_t *last = memmem(data, length, "\r\n\r\n", 4);
    if (!last) return 0;
    uint8_t *key = memmem(data, length, name, sizeof name - 1);
    if (!key || key + sizeof name + 23 > last) return 0;
    char text[64], response[160];
    memcpy(text, key + sizeof name - 1, 24);
    memcpy(text + 24, guid, 36);
    uint8_t digest[20], accept[32];
    SHA1((uint8_t *)text, 60, digest);
    EVP_EncodeBlock(accept, digest, sizeof digest);
    int size = snprintf(response, sizeof response,
                        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        "Sec-WebSocket-Accept: %s\r\n\r\n", accept);
    send_or_keep(fd, (uint8_t *)response, (size_t)size);
    connections[fd].open = 1;
    if (!memcmp(data, "GET /sink", 9)) {
        connections[fd].role = SINK;
    } else if (!memcmp(data, "GET /fan-out", 12)) {
        connections[fd].role = FAN_OUT;
        audience[listeners++] = fd;
    }
    return (size_t)(last + 4 - data);
}

static void unmask(uint8_t *to, const uint8_t *from, const uint8_t *key, size_t length) {
    uint64_t twice, word;
    memcpy(&twice, key, 4);
    memcpy((uint8_t *)&twice + 4, key, 4);
    size_t at = 0;
    for (; at + 8 <= length; at += 8) {
        memcpy(&word, from + at, 8);
        word ^= twice;
        memcpy(to + at, &word, 8);
    }
    for (; at < length; at++) to[at] = from[at] ^ key[at & 3];
}

/* Tells what a sink has counted. */
static void report(int fd) {
    const struct connection *c = &connections[fd];
    char text[100];
    int size = snprintf(text + 2, sizeof text - 2, "{\"messages\": %lu, \"bytes\": %lu}", c->messages, c->bytes);
    text[0] = (char)0x81;
    text[1] = (char)size;
    send_or_keep(fd, (uint8_t *)text, (size_t)size + 2);
}

/* To the sender, or to all clients. */
static void deliver(int fd, size_t length) {
    if (connections[fd].role != FAN_OUT) send_or_keep(fd, output, length);
    else for (int i = 0; i < listeners; i++) send_or_keep(audience[i], output, length);
}

/* Does with the frames in what came what is wanted; how many bytes they have, -1 after a close frame. */
static ssize_t serve(int fd, const uint8_t *data, size_t length) {
    struct connection *c = &connections[fd];
    size_t at = 0, out = 0;
    int closing = 0;
    while (!closing && length - at >= 6) {
        const uint8_t *frame = data + at;
        size_t head = 2, size = frame[1] & 127;
        if (size == 126) {
            head = 4;
            size = (size_t)frame[2] << 8 | frame[3];
        } else if (size == 127) {
            head = 10;
            if (length - at < 10) break;
            size = 0;
            for (int i = 2; i < 10; i++) size = size << 8 | frame[i];
        }
        if (length - at < head + 4 + size) break;
        at += head + 4 + size;
        closing = (frame[0] & 15) == 8;
        if (c->role == SINK && !closing) {
            if ((frame[0] & 15) == 1) {
                report(fd);
            } else {
                /* In the form that a counting client expects. */
                unmask(output, frame + head + 4, frame + head, size);
                c->messages++;
                c->bytes += size;
            }
            continue;
        }
        if (out + head + size > sizeof output) {
            deliver(fd, out);
            out = 0;
        }
        memcpy(output + out, frame, head);
        output[out + 1] &= 127;
        unmask(output + out + head, frame + head + 4, frame + head, size);
        out += head + size;
        if (closing) {
            if (out > head + size) deliver(fd, out - head - size);
            send_or_keep(fd, output + out - head - size, head + size);
            out = 0;
        }
    }
    if (out) deliver(fd, out);
    return closing ? -1 : (ssize_t)at;
}

static void receive(int fd) {
    struct connection *c = &connections[fd];
    size_t kept = c->length;
    if (kept > READ_SIZE) {
        fprintf(stderr, "a message of more than %d bytes\n", READ_SIZE);
        exit(1);
    }
    memcpy(input, c->kept, kept);
    ssize_t received = recv(fd, input + kept, READ_SIZE, MSG_DONTWAIT);
    if (received < 0 && errno == EAGAIN) return;
    if (received <= 0) {
        end(fd);
        return;
    }
    size_t length = kept + (size_t)received, taken = 0;
    if (!c->open) taken = answer(fd, input, length);
    if (c->open) {
        ssize_t more = serve(fd, input + taken, length - taken);
        if (more < 0) {
            end(fd);
            return;
        }
        taken += (size_t)more;
    }
    c->length = length - taken;
    free(c->kept);
    c->kept = c->length ? malloc(c->length) : NULL;
    if (c->kept) memcpy(c->kept, input + taken, c->length);
}

static void accept_all(int listening) {
    int accepted;
    while ((accepted = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        if (accepted >= MOST) close(accepted);
        else watch(accepted, EPOLL_CTL_ADD, EPOLLIN);
    }
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "--version")) {
        puts("gcc " __VERSION__);
        return 0;
    }
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int yes = 1, listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    setsockopt(listening, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (bind(listening, (struct sockaddr *)&address, size) < 0 || listen(listening, BACKLOG) < 0) fail("listen");
    getsockname(listening, (struct sockaddr *)&address, &size);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    watch(listening, EPOLL_CTL_ADD, EPOLLIN);
    watch(STDIN_FILENO, EPOLL_CTL_ADD, EPOLLIN); /* a pipe, whose end is ours */
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    static struct epoll_event events[EVENTS];
    for (;;) {
        int ready = epoll_wait(poll_fd, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd == STDIN_FILENO) return 0;
            if (fd == listening) accept_all(listening);
            else if (connections[fd].left) send_kept(fd);
            else receive(fd);
        }
    }
}
