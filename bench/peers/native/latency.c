#include "latency.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "content.h"

/* Samples at most, 32 MB of them: the window ends then. */
#define MOST 4000000

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int compare(const void *one, const void *other) {
    int64_t left = *(const int64_t *)one, right = *(const int64_t *)other;
    return (left > right) - (left < right);
}

/* The least sample, in microseconds, that so many per mille of all do not exceed. */
static double percentile(const int64_t *ordered, size_t count, size_t share) {
    size_t rank = (count * share + 999) / 1000;
    return ordered[rank ? rank - 1 : 0] / 1e3;
}

void time_alone(uint64_t (*step)(uint64_t count), double seconds, char *text, size_t length) {
    size_t count = 0, room = 4096;
    int64_t *samples = (int64_t *)must_allocate(room * sizeof *samples), now = nanoseconds(), end = now + (int64_t)(seconds * 1e9);
    double sum = 0;
    do {
        if (count == room) {
            int64_t *more = (int64_t *)must_allocate(2 * room * sizeof *samples);
            for (size_t i = 0; i < count; i++) more[i] = samples[i];
            free(samples);
            samples = more;
            room *= 2;
        }
        int64_t begun = nanoseconds();
        step(1);
        now = nanoseconds();
        sum += samples[count++] = now - begun;
    } while (now < end && count < MOST);
    qsort(samples, count, sizeof *samples, compare);
    snprintf(text, length,
             "\"mean\": %.3f, \"p50\": %.3f, \"p90\": %.3f, \"p99\": %.3f, \"p999\": %.3f, \"max\": %.3f, ",
             sum / count / 1e3, percentile(samples, count, 500), percentile(samples, count, 900),
             percentile(samples, count, 990), percentile(samples, count, 999), samples[count - 1] / 1e3);
    free(samples);
}
