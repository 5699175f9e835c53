#define _GNU_SOURCE
#include "program.h"

#include <dirent.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "latency.h"

#define STEP_SECONDS 0.005
/* The window in which single operations are timed, beside the one of the rate, in which no clock is read. */
#define LATENCY_SHARE 0.5

struct options options = {
    .url = "ws://127.0.0.1:8765/", .workload = "round-trip", .size = 256, .batch = 1024, .window = 100,
    .seconds = 1.0, .warmup = 0.3, .core = -1, .server_pid = -1,
};

struct usage {
    double wall, user, system, server;
};

void fail(const char *format, ...) {
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

struct address parse_address(void) {
    struct address address = {.target = "/"};
    const char *rest = options.url;
    address.tls = !strncmp(rest, "wss://", 6);
    if (!address.tls && strncmp(rest, "ws://", 5)) fail("the URL must begin with ws:// or wss://: %s", rest);
    rest += address.tls ? 6 : 5;
    if (sscanf(rest, "%63[0-9.]:%d%127s", address.host, &address.port, address.target) < 2)
        fail("this peer takes URLs with an IPv4 address and a port, not %s", options.url);
    return address;
}

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

static void finish(const struct workload *workload) {
    if (workload->finish) workload->finish();
}

/* Runs the workload for some time, and finds the step that takes about STEP_SECONDS. */
static uint64_t warm_up(const struct workload *workload) {
    uint64_t count = 2;
    double end = wall_clock() + options.warmup;
    for (;;) {
        double since = wall_clock();
        workload->step(count);
        double now = wall_clock();
        if (now - since < STEP_SECONDS / 2) count *= 2;
        else if (now >= end) break;
    }
    finish(workload);
    return count;
}

static void measure(struct workload workload, const char *version) {
    uint64_t count = warm_up(&workload), total = 0;
    struct usage since = usage_now();
    double end = since.wall + options.seconds;
    while (wall_clock() < end) total += workload.step(count);
    finish(&workload);
    struct usage until = usage_now();
    if (workload.settle) workload.settle();

    char server[32] = "null", figures[256] = "";
    if (workload.timed) time_alone(workload.step, options.seconds * LATENCY_SHARE, figures, sizeof figures);
    if (since.server >= 0 && until.server >= 0) snprintf(server, sizeof server, "%.9f", until.server - since.server);
    printf("{\"count\": %llu, \"seconds\": %.9f, \"user\": %.6f, \"system\": %.6f, \"server\": %s, \"checked\": true, "
           "%s\"version\": \"%s\"}\n",
           (unsigned long long)total, until.wall - since.wall, until.user - since.user, until.system - since.system,
           server, figures, version);
}

static void probe(const struct style *style, const char *version, int tls) {
    printf("{\"version\": \"%s\", \"tls\": %s, \"workloads\": [", version, tls ? "true" : "false");
    for (const char *const *name = style->workloads; *name; name++)
        printf("%s\"%s\"", name == style->workloads ? "" : ", ", *name);
    puts("]}");
}

static const struct style *chosen_style(const struct style *styles) {
    for (const struct style *one = styles; one->workloads; one++)
        if (!one->style ? !options.style : options.style && !strcmp(one->style, options.style)) return one;
    fail("this peer has no style %s", options.style ? options.style : "without a name");
}

/* Tells whether an option is one of workloads that these peers do not have. */
static int is_ignored(const char *name) {
    static const char *const ignored[] = {"--connections", "--bytes", "--content", "--rate"};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        if (!strcmp(name, ignored[i])) return 1;
    return 0;
}

/* Reads the command line; returns whether it asks for what the peer can do. */
static int parse(int count, char **arguments) {
    int asked = 0;
    for (int i = 1; i < count; i++) {
        const char *name = arguments[i];
        if (!strcmp(name, "--probe")) {
            asked = 1;
            continue;
        }
        if (!strcmp(name, "--deflate")) continue; /* of workloads that these peers do not have, as those below */
        if (++i == count) fail("%s needs a value", name);
        const char *value = arguments[i];
        if (!strcmp(name, "--url")) options.url = value;
        else if (!strcmp(name, "--workload")) options.workload = value;
        else if (!strcmp(name, "--style")) options.style = value;
        else if (!strcmp(name, "--ca")) options.ca = value;
        else if (!strcmp(name, "--size")) options.size = strtoul(value, NULL, 10);
        else if (!strcmp(name, "--batch")) options.batch = strtoul(value, NULL, 10);
        else if (!strcmp(name, "--window")) options.window = strtoul(value, NULL, 10);
        else if (is_ignored(name)) continue;
        else if (!strcmp(name, "--seconds")) options.seconds = strtod(value, NULL);
        else if (!strcmp(name, "--warmup")) options.warmup = strtod(value, NULL);
        else if (!strcmp(name, "--core")) options.core = strtol(value, NULL, 10);
        else if (!strcmp(name, "--server-pid")) options.server_pid = strtol(value, NULL, 10);
        else fail("unknown option %s", name);
    }
    return asked;
}

int run(int count, char **arguments, const char *version, int tls, const struct style *styles) {
    int asked = parse(count, arguments);
    const struct style *style = chosen_style(styles);
    if (asked) {
        probe(style, version, tls);
        return 0;
    }
    int known = 0;
    for (const char *const *name = style->workloads; *name; name++) known |= !strcmp(*name, options.workload);
    if (!known) fail("this peer has no workload %s", options.workload);
    if (options.core >= 0) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET(options.core, &cores);
        if (sched_setaffinity(0, sizeof cores, &cores)) fail("cannot run on core %ld: %m", options.core);
    }
    measure(style->open(), version);
    return 0;
}
