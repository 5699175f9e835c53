/* How long single operations take: every sample is kept, what is told of them is in microseconds; as latency.py has it
 * for the peers in Python.
 */

#ifndef NATIVE_LATENCY_H
#define NATIVE_LATENCY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Times steps of one operation for so many seconds; writes mean, percentiles and the greatest into `text`, as members
 * of a JSON object, each with a comma behind it. */
void time_alone(uint64_t (*step)(uint64_t count), double seconds, char *text, size_t length);

#ifdef __cplusplus
}
#endif

#endif
