/* The program around the measuring loops of the peers in C and C++: command line, clocks, warm-up, window, the line of
 * JSON. It knows no connection; a peer gives `run` its ways of working, which do.
 * The contract of the peers is in METHODOLOGY.md.
 */

#ifndef NATIVE_PROGRAM_H
#define NATIVE_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The command line. A style or a CA that was not given is NULL. */
struct options {
    const char *url, *workload, *style, *ca;
    size_t size, batch, window;
    double seconds, warmup;
    long core, server_pid;
};

extern struct options options;

/* The parts of options.url. */
struct address {
    int tls, port;
    char host[64], target[128];
};

/* A workload on an open connection.
 *
 * step: does about `count` operations, returns how many they were.
 * finish: ends a sequence of steps, inside the window; may be NULL.
 * settle: makes sure that nothing is missing, after the window; may be NULL.
 * timed: whether steps of one operation are timed alone, in a second window.
 */
struct workload {
    uint64_t (*step)(uint64_t count);
    void (*finish)(void);
    void (*settle)(void);
    int timed;
};

/* A way of working.
 *
 * style: the name that scenarios use; NULL for the one without a name.
 * workloads: what it can do, with blanks between.
 * open: connects for options.workload.
 */
struct style {
    const char *style, *workloads;
    struct workload (*open)(void);
};

/* Prints why there is no result, as JSON, and ends the program. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

struct address parse_address(void);

/* Runs a peer: answers --probe, or measures; prints one line of JSON. `styles` ends with an element whose workloads
 * are NULL. */
int run(int count, char **arguments, const char *version, int tls, const struct style *styles);

#ifdef __cplusplus
}
#endif

#endif
