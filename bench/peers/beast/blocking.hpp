/* Blocking calls, as in Beast's example websocket-client-sync. */

#pragma once

#include "connection.hpp"

template <class Stream>
struct Blocking {
    static inline Connection<Stream>* connection;
    static inline uint64_t position; /* messages of the stream so far, or to the sink, or round trips */

    static uint64_t step_round_trip(uint64_t count) {
        for (uint64_t i = 0; i < count; i++) connection->round_trip(position++);
        return count;
    }

    static uint64_t step_stream_in(uint64_t count) {
        auto& buffer = connection->buffer;
        for (uint64_t i = 0; i < count; i++) {
            buffer.clear();
            connection->ws.read(buffer);
        }
        position += count;
        check_stream(static_cast<const uint8_t*>(buffer.data().data()), buffer.size(), position - 1);
        return count;
    }

    static uint64_t step_send(uint64_t count) {
        for (uint64_t i = 0; i < count; i++) connection->ws.write(connection->message[i & 1]);
        position += count;
        return count;
    }

    static void finish_sink() { connection->check_sink(position); }

    static workload open() {
        if (is_sending()) check_echo<Stream>();
        connection = new Connection<Stream>;
        if (is_sending()) return {step_send, finish_sink, nullptr, 0};
        if (!std::strcmp(options.workload, "stream-in")) return {step_stream_in, nullptr, nullptr, 0};
        return {step_round_trip, nullptr, nullptr, 1};
    }
};
