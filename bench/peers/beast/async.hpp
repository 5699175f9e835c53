/* Handlers in an event loop of one thread, as in Beast's example websocket-client-async: each operation is begun when
 * the one before is complete.
 */

#pragma once

#include "connection.hpp"

template <class Stream>
class Async {
public:
    static workload open() {
        if (is_sending()) check_echo<Stream>();
        connection = new Connection<Stream>;
        if (is_sending()) return {step_send, finish_sink, nullptr, 0};
        if (!std::strcmp(options.workload, "stream-in")) return {step_stream_in, nullptr, nullptr, 0};
        if (!std::strcmp(options.workload, "round-trip")) return {step_round_trip, nullptr, nullptr, 1};
        due = options.window;
        write_next();
        read_next();
        return {step_pipelined, nullptr, settle, 0};
    }

private:
    static inline Connection<Stream>* connection;
    static inline uint64_t position, goal; /* what is counted: messages received, or to the sink; where a step ends */
    static inline uint64_t due, written;   /* when pipelined: messages that may be sent by now, that were sent */
    static inline bool writing;

    static void check(const beast::error_code& error) {
        if (error) fail("%s", error.message().c_str());
    }

    /* Begins something that goes on until `count` more are counted, and runs the loop until then. */
    static uint64_t run(uint64_t count, void (*begin)() = nullptr) {
        goal = position + count;
        context.restart();
        if (begin) begin();
        context.run();
        return count;
    }

    /* Counts one; returns whether the step goes on. */
    static bool counted() {
        bool on = ++position < goal;
        if (!on) context.stop();
        return on;
    }

    static uint64_t step_round_trip(uint64_t count) { return run(count, write_one); }

    static void write_one() {
        connection->ws.async_write(connection->message[position & 1], [](beast::error_code error, std::size_t) {
            check(error);
            connection->ws.async_read(connection->buffer, [](beast::error_code error, std::size_t) {
                check(error);
                connection->take_reply(position);
                if (counted()) write_one();
            });
        });
    }

    static uint64_t step_stream_in(uint64_t count) {
        run(count, read_one);
        auto payload = connection->buffer.data();
        check_stream(static_cast<const uint8_t*>(payload.data()), payload.size(), position - 1);
        return count;
    }

    static void read_one() {
        connection->buffer.clear();
        connection->ws.async_read(connection->buffer, [](beast::error_code error, std::size_t) {
            check(error);
            if (counted()) read_one();
        });
    }

    static uint64_t step_send(uint64_t count) { return run(count, send_one); }

    static void send_one() {
        connection->ws.async_write(connection->message[position & 1], [](beast::error_code error, std::size_t) {
            check(error);
            if (counted()) send_one();
        });
    }

    static void finish_sink() { connection->check_sink(position); }

    /* Writes one message after the other while some are due: Beast takes one at a time. */
    static void write_next() {
        writing = written < due;
        if (!writing) return;
        connection->ws.async_write(connection->message[written & 1], [](beast::error_code error, std::size_t) {
            check(error);
            written++;
            write_next();
        });
    }

    static void read_next() {
        connection->ws.async_read(connection->buffer, [](beast::error_code error, std::size_t) {
            check(error);
            connection->take_reply(position);
            counted();
            if (position + options.window > due && !settling) {
                due = position + options.window;
                if (!writing) write_next();
            }
            read_next();
        });
    }

    static inline bool settling;

    static uint64_t step_pipelined(uint64_t count) { return run(count); }

    /* Waits for the replies to all that was due. */
    static void settle() {
        settling = true;
        run(due - position);
    }
};
