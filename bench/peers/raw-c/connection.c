/* The connection: its handshake, and the two ways of waiting. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "raw.h"

static int sock = -1, epoll = -1; /* the second only with epoll */
static uint32_t interest = EPOLLIN;

struct frame make_frame(uint8_t opcode, const uint8_t *payload, size_t size, int mask) {
    uint8_t key[4] = {0}, bit = mask ? 0x80 : 0;
    struct frame frame = {must_allocate(size + 14), 0};
    int wide = size < 126 ? 0 : size < 65536 ? 2 : 8;
    frame.data[0] = opcode;
    frame.data[1] = bit | (wide == 0 ? size : wide == 2 ? 126 : 127);
    for (int i = 0; i < wide; i++) frame.data[2 + i] = (uint8_t)((uint64_t)size >> (8 * (wide - 1 - i)));
    size_t head = 2 + wide;
    if (mask) {
        if (getrandom(key, 4, 0) != 4) fail("getrandom: %m");
        memcpy(frame.data + head, key, 4);
        head += 4;
    }
    for (size_t i = 0; i < size; i++) frame.data[head + i] = payload[i] ^ key[i & 3];
    frame.length = head + size;
    return frame;
}

size_t send_now(const uint8_t *data, size_t length) {
    ssize_t sent = send(sock, data, length, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) fail("send: %m");
    return sent < 0 ? 0 : sent;
}

size_t recv_now(uint8_t *data, size_t length) {
    ssize_t count = recv(sock, data, length, 0);
    if (count < 0) fail("recv: %m");
    if (!count) fail("the server closed the connection");
    return count;
}

static uint32_t wait_for_events(uint32_t events) {
    if (events != interest) {
        struct epoll_event change = {.events = events};
        if (epoll_ctl(epoll, EPOLL_CTL_MOD, sock, &change)) fail("epoll_ctl: %m");
        interest = events;
    }
    struct epoll_event event;
    int count;
    while ((count = epoll_wait(epoll, &event, 1, -1)) < 0)
        if (errno != EINTR) fail("epoll_wait: %m");
    return event.events;
}

int wait_for(int room) {
    return wait_for_events(EPOLLIN | (room ? EPOLLOUT : 0)) & (EPOLLIN | EPOLLERR | EPOLLHUP);
}

void send_all(const uint8_t *data, size_t length) {
    for (;;) {
        size_t sent = send_now(data, length);
        data += sent;
        length -= sent;
        if (!length) return;
        if (epoll >= 0) wait_for_events(EPOLLOUT);
    }
}

size_t recv_some(uint8_t *data, size_t length) {
    if (epoll >= 0) wait_for_events(EPOLLIN);
    return recv_now(data, length);
}

void connect_raw(int with_epoll) {
    struct address url = parse_address();
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(url.port)};
    char request[512], head[4096];
    int one = 1;
    if (url.tls) fail("raw-c has no TLS");
    sock = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, url.host, &address.sin_addr);
    if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address)) fail("connect: %m");
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    int length = snprintf(request, sizeof request,
                          "GET %s HTTP/1.1\r\nHost: %s:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                          "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
                          url.target, url.host, url.port);
    send_all((uint8_t *)request, length);
    /* Byte by byte, so that no frame behind the head is taken. */
    size_t count = 0;
    while (count < 4 || memcmp(head + count - 4, "\r\n\r\n", 4)) {
        if (count == sizeof head - 1) fail("the head of the server's answer is too long");
        count += recv_some((uint8_t *)head + count, 1);
    }
    head[count] = 0;
    if (strncmp(head, "HTTP/1.1 101", 12)) fail("the server refused the handshake: %.40s", head);
    struct epoll_event first = {.events = interest};
    if (with_epoll && (fcntl(sock, F_SETFL, O_NONBLOCK) || (epoll = epoll_create1(0)) < 0 ||
                       epoll_ctl(epoll, EPOLL_CTL_ADD, sock, &first)))
        fail("epoll: %m");
}
