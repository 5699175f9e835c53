/* The content of the messages and what must arrive: the same for every peer in C and C++, as content.py has it for
 * those in Python.
 */

#ifndef NATIVE_CONTENT_H
#define NATIVE_CONTENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Allocates, or ends the program. */
void *must_allocate(size_t length);

/* Fills in two messages that differ in every byte: a reply that is late by one is noticed. */
void two_messages(uint8_t *message[2], size_t size);

/* Ends the program: a reply is not the message that was sent. */
void fail_reply(void) __attribute__((noreturn));

/* Checks message `number` of /blast: its number in 8 bytes, little-endian, then a fixed pattern. */
void check_stream(const uint8_t *payload, size_t length, uint64_t number);

/* Checks what /sink has answered: it must have received what was sent. `text` ends with a zero. */
void check_sink(const char *text, uint64_t sent);

#ifdef __cplusplus
}
#endif

#endif
