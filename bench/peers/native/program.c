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

#define STEP_SECONDS 0.005
/* The window in which single operations are timed, beside the one of the rate, in which no clock is read. */
#define LATENCY_SHARE 0.5
/* Samples at most, 32 MB of them: that window ends then. */
#define MOST 4000000

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

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static double wall_clock(void) { return nanoseconds() / 1e9; }

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
        unsigned long long used = 0;
        if (id <= 0) continue;
        snprintf(path, sizeof path, "/proc/%ld/task/%ld/schedstat", options.server_pid, id);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        if (fscanf(file, "%llu", &used) == 1) total += used / 1e9;
        fclose(file);
    }
    closedir(tasks);
    return total > 0 ? total : -1;
}

static struct usage usage_now(void) {
    struct usage reading = {.server = server_cpu()};
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    reading.user = own.ru_utime.tv_sec + own.ru_utime.tv_usec / 1e6;
    reading.system = own.ru_stime.tv_sec + own.ru_stime.tv_usec / 1e6;
    reading.wall = wall_clock();
    return reading;
}

static int compare(const void *one, const void *other) {
    int64_t left = *(const int64_t *)one, right = *(const int64_t *)other;
    return (left > right) - (left < right);
}

/* Times steps of one operation for so many seconds; writes mean, percentiles and the greatest, in microseconds, as members
 * of a JSON object, each with a comma behind it. */
static void time_alone(uint64_t (*step)(uint64_t count), double seconds, char *text, size_t length) {
    static const struct { const char *name; size_t share; } percentiles[] = {
        {"p50", 500}, {"p90", 900}, {"p95", 950}, {"p99", 990}, {"p999", 999},
    };
    static int64_t samples[MOST];
    size_t count = 0;
    double sum = 0;
    for (int64_t now = nanoseconds(), end = now + (int64_t)(seconds * 1e9); !count || (now < end && count < MOST);) {
        int64_t begun = nanoseconds();
        step(1);
        now = nanoseconds();
        sum += samples[count++] = now - begun;
    }
    qsort(samples, count, sizeof *samples, compare);
    size_t at = snprintf(text, length, "\"mean\": %.3f, \"max\": %.3f, ", sum / count / 1e3, samples[count - 1] / 1e3);
    for (size_t i = 0; i < sizeof percentiles / sizeof *percentiles; i++) {
        /* The least sample that so many per mille of all do not exceed. */
        size_t rank = (count * percentiles[i].share + 999) / 1000;
        double value = samples[rank ? rank - 1 : 0] / 1e3;
        at += snprintf(text + at, length - at, "\"%s\": %.3f, ", percentiles[i].name, value);
    }
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
    if (workload->finish) workload->finish();
    return count;
}

static void measure(struct workload workload, const char *version) {
    uint64_t count = warm_up(&workload), total = 0;
    struct usage since = usage_now();
    double end = since.wall + options.seconds;
    while (wall_clock() < end) total += workload.step(count);
    if (workload.finish) workload.finish();
    struct usage until = usage_now();
    if (workload.settle) workload.settle();
    char server[32] = "null", figures[512] = "";
    if (workload.timed) time_alone(workload.step, options.seconds * LATENCY_SHARE, figures, sizeof figures);
    if (since.server >= 0 && until.server >= 0) snprintf(server, sizeof server, "%.9f", until.server - since.server);
    printf("{\"count\": %llu, \"seconds\": %.9f, \"user\": %.6f, \"system\": %.6f, \"server\": %s, \"checked\": true, "
           "%s\"version\": \"%s\"}\n",
           (unsigned long long)total, until.wall - since.wall, until.user - since.user, until.system - since.system,
           server, figures, version);
}

static int has(const struct style *style, const char *workload) {
    size_t length = strlen(workload);
    for (const char *at = style->workloads; at; at = strchr(at, ' ')) {
        at += *at == ' ';
        if (strcspn(at, " ") == length && !strncmp(at, workload, length)) return 1;
    }
    return 0;
}

static void probe(const struct style *style, const char *version, int tls) {
    printf("{\"version\": \"%s\", \"tls\": %s, \"workloads\": [\"", version, tls ? "true" : "false");
    for (const char *at = style->workloads; *at; at++) *at == ' ' ? fputs("\", \"", stdout) : putchar(*at);
    puts("\"]}");
}

static const struct style *chosen_style(const struct style *styles) {
    for (const struct style *one = styles; one->workloads; one++)
        if (!one->style ? !options.style : options.style && !strcmp(one->style, options.style)) return one;
    fail("this peer has no style %s", options.style ? options.style : "without a name");
}

/* Reads the command line; returns whether it asks for what the peer can do. */
static int parse(int count, char **arguments) {
    const struct { const char *name, **text; size_t *size; double *number; long *id; } known[] = {
        {"--url", .text = &options.url}, {"--workload", .text = &options.workload},
        {"--style", .text = &options.style}, {"--ca", .text = &options.ca}, {"--size", .size = &options.size},
        {"--batch", .size = &options.batch}, {"--window", .size = &options.window},
        {"--seconds", .number = &options.seconds}, {"--warmup", .number = &options.warmup},
        {"--core", .id = &options.core}, {"--server-pid", .id = &options.server_pid},
    };
    int asked = 0;
    for (int i = 1; i < count; i++) {
        if (!strcmp(arguments[i], "--probe")) {
            asked = 1;
            continue;
        }
        size_t at = 0, end = sizeof known / sizeof *known;
        while (at < end && strcmp(arguments[i], known[at].name)) at++;
        if (at == end) fail("unknown option %s", arguments[i]);
        if (++i == count) fail("%s needs a value", known[at].name);
        if (known[at].text) *known[at].text = arguments[i];
        if (known[at].size) *known[at].size = strtoul(arguments[i], NULL, 10);
        if (known[at].number) *known[at].number = strtod(arguments[i], NULL);
        if (known[at].id) *known[at].id = strtol(arguments[i], NULL, 10);
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
    if (!has(style, options.workload)) fail("this peer has no workload %s", options.workload);
    if (options.core >= 0) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET(options.core, &cores);
        if (sched_setaffinity(0, sizeof cores, &cores)) fail("cannot run on core %ld: %m", options.core);
    }
    measure(style->open(), version);
    return 0;
}
