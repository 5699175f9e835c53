/* A connection of Boost.Beast, set up as in the benchmark that is known for comparing Python's libraries with it: no
 * delay of small writes, messages not split, a write buffer that takes a whole message up to 64 KiB. No compression,
 * no timeouts, no limit on size.
 */

#pragma once

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/ssl.hpp>
#include <boost/beast/websocket.hpp>
#include <boost/beast/websocket/ssl.hpp>
#include <cstring>
#include <string>
#include <type_traits>

#include "../native/content.h"
#include "../native/program.h"

namespace beast = boost::beast;
namespace net = boost::asio;
namespace ssl = boost::asio::ssl;
namespace websocket = beast::websocket;
using tcp = net::ip::tcp;

using Plain = tcp::socket;
using Secure = beast::ssl_stream<tcp::socket>;

/* That of this process; one thread. */
inline net::io_context context{1};

inline ssl::context& tls_context() {
    static ssl::context settings{ssl::context::tls_client};
    settings.set_verify_mode(ssl::verify_peer);
    settings.set_default_verify_paths();
    if (options.ca) settings.load_verify_file(options.ca);
    return settings;
}

template <class Stream>
class Connection {
public:
    /* Connects to a path: another than that of options.url if given. */
    explicit Connection(const char* path = nullptr) : ws{make()} {
        address url = parse_address();
        if (path) std::snprintf(url.target, sizeof url.target, "%s", path);
        auto& socket = beast::get_lowest_layer(ws);
        socket.connect({net::ip::make_address(url.host), static_cast<unsigned short>(url.port)});
        socket.set_option(tcp::no_delay{true});
        if constexpr (std::is_same_v<Stream, Secure>) {
            ws.next_layer().set_verify_callback(ssl::host_name_verification{url.host});
            ws.next_layer().handshake(ssl::stream_base::client);
        }
        ws.write_buffer_bytes(std::clamp<std::size_t>(options.size, 4096, 65536));
        ws.auto_fragment(false);
        ws.read_message_max(0);
        ws.handshake(std::string{url.host} + ":" + std::to_string(url.port), url.target);
        ws.binary(true);
        uint8_t* two[2];
        two_messages(two, options.size);
        for (int i = 0; i < 2; i++) message[i] = net::buffer(two[i], options.size);
    }

    /* Checks what is in the buffer, the reply to message `number`, and empties it. */
    void take_reply(uint64_t number) {
        auto expected = message[number & 1];
        auto payload = buffer.data();
        if (payload.size() != expected.size() || std::memcmp(payload.data(), expected.data(), expected.size()))
            fail_reply();
        buffer.clear();
    }

    /* Sends a message and waits for its echo. */
    void round_trip(uint64_t number) {
        ws.write(message[number & 1]);
        ws.read(buffer);
        take_reply(number);
    }

    /* Asks /sink what has arrived. */
    void check_sink(uint64_t sent) {
        ws.text(true);
        ws.write(net::buffer("report", 6));
        ws.binary(true);
        ws.read(buffer);
        ::check_sink(beast::buffers_to_string(buffer.data()).c_str(), sent);
        buffer.clear();
    }

    websocket::stream<Stream> ws;
    beast::flat_buffer buffer;
    net::const_buffer message[2];

private:
    static websocket::stream<Stream> make() {
        if constexpr (std::is_same_v<Stream, Secure>) return websocket::stream<Stream>{context, tls_context()};
        else return websocket::stream<Stream>{context};
    }
};

/* Whether it is one of the sending loops; both of them hand over each message by a system call. */
inline bool is_sending() { return !std::strcmp(options.workload, "send") || !std::strcmp(options.workload, "send-each"); }

/* Before a sending loop: what is sent must come back unchanged. */
template <class Stream>
void check_echo() {
    Connection<Stream> echo{"/"};
    for (uint64_t i = 0; i < 2; i++) echo.round_trip(i);
}
