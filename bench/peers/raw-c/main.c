#include <string.h>

#include "raw.h"

#define VERSION "cc " __VERSION__

static struct workload open_blocking(void) {
    connect_blocking();
    return open_workload(&blocking_port);
}

static struct workload open_epoll(void) {
    connect_epoll();
    return strcmp(options.workload, "pipelined") ? open_workload(&epoll_port) : open_pipelined();
}

int main(int count, char **arguments) {
    static const char *const blocking[] = {"round-trip", "stream-in", "stream-in-many", "send",
                                           "send-each",  "send-many", NULL};
    static const char *const epoll[] = {"round-trip", "stream-in", "send", "send-each", "pipelined", NULL};
    static const struct style styles[] = {{NULL, blocking, open_blocking}, {"epoll", epoll, open_epoll}, {0}};
    return run(count, arguments, VERSION, 0, styles);
}
