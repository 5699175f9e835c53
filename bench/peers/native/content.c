#include "content.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

void *must_allocate(size_t length) {
    void *memory = malloc(length ? length : 1);
    if (!memory) fail("out of memory");
    return memory;
}

void two_messages(uint8_t *message[2], size_t size) {
    for (int i = 0; i < 2; i++) message[i] = (uint8_t *)must_allocate(size);
    for (size_t i = 0; i < size; i++) message[1][i] = ~(message[0][i] = (uint8_t)(i * 7));
}

void fail_reply(void) { fail("a reply differs from the message that was sent"); }

void check_stream(const uint8_t *payload, size_t length, uint64_t number) {
    static uint8_t *pattern;
    if (options.size < 8) fail("/blast numbers its messages: a size of %zu is too small, 8 is the least", options.size);
    if (!pattern) {
        pattern = (uint8_t *)must_allocate(options.size);
        for (size_t i = 8; i < options.size; i++) pattern[i - 8] = (uint8_t)i;
    }
    uint64_t carried = 0;
    if (length == options.size) memcpy(&carried, payload, 8);
    if (length != options.size || carried != number || memcmp(payload + 8, pattern, options.size - 8))
        fail("message %llu of the stream carries number %llu, or has other content", (unsigned long long)number,
             (unsigned long long)carried);
}

void check_sink(const char *text, uint64_t sent) {
    unsigned long long messages = 0, bytes = 0;
    if (sscanf(text, " { \"messages\" : %llu , \"bytes\" : %llu }", &messages, &bytes) != 2)
        fail("/sink answered %s", text);
    if (messages != sent || bytes != sent * options.size)
        fail("/sink received %llu messages, sent were %llu", messages, (unsigned long long)sent);
}
