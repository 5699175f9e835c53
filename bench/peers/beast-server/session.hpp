/* One client, served by handlers as in Beast's examples websocket-server-async and websocket-chat-multi; what it is
 * for says the path of its request. No limit on size; compression and pings only where they are asked for, no other
 * timeouts; messages are not split, and small writes not delayed, as in the benchmark that Python's libraries are known
 * to be compared with it by.
 */

#pragma once

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <boost/beast/websocket.hpp>
#include <boost/beast/websocket/ssl.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_set>

namespace beast = boost::beast;
namespace http = beast::http;
namespace net = boost::asio;
namespace ssl = net::ssl;
namespace websocket = beast::websocket;
using tcp = net::ip::tcp;

using Plain = tcp::socket;
using Secure = beast::ssl_stream<tcp::socket>;

/* What is the same for all sessions. */
struct Settings {
    bool deflate = false;                       /* agree to permessage-deflate */
    std::chrono::milliseconds ping_interval{0}; /* of silence, after which a ping is sent; 0: none is */
};
inline Settings settings;

template <class Stream>
class Session : public std::enable_shared_from_this<Session<Stream>> {
public:
    template <class... Arguments>
    explicit Session(Arguments&&... arguments) : ws{std::forward<Arguments>(arguments)...} {}

    ~Session() { everybody.erase(this); }

    void run() {
        beast::get_lowest_layer(ws).set_option(tcp::no_delay{true});
        if constexpr (std::is_same_v<Stream, Secure>)
            ws.next_layer().async_handshake(ssl::stream_base::server, then(&Session::read_request));
        else read_request();
    }

private:
    using Message = std::shared_ptr<const std::string>;

    websocket::stream<Stream> ws;
    beast::flat_buffer buffer;
    http::request<http::empty_body> request;
    void (Session::*handler)() = &Session::echo; /* of a message */
    uint64_t messages = 0, bytes = 0;            /* of a sink */
    std::string out;                             /* what is being sent, unless it is an echo */
    std::deque<Message> queue;                   /* what everybody gets */
    /* All that are connected to /fan-out. */
    static inline std::unordered_set<Session*> everybody;

    /* Returns a handler that goes on with a method unless there is an error, which ends the session. */
    auto then(void (Session::*next)()) {
        return [self = this->shared_from_this(), next](beast::error_code error, auto...) {
            if (!error) (self.get()->*next)();
        };
    }

    void read_request() { http::async_read(ws.next_layer(), buffer, request, then(&Session::accept)); }

    void accept() {
        ws.auto_fragment(false);
        ws.read_message_max(0);
        if (settings.deflate) {
            websocket::permessage_deflate deflate;
            deflate.server_enable = true;
            ws.set_option(deflate);
        }
        if (settings.ping_interval.count()) {
            /* Beast sends a ping when half of the time is over after which it gives a silent connection up. */
            const auto never = websocket::stream_base::none();
            ws.set_option(websocket::stream_base::timeout{never, 2 * settings.ping_interval, true});
        }
        ws.async_accept(request, then(&Session::begin));
    }

    void begin() {
        std::string target{request.target()};
        request = {};
        if (target == "/sink") handler = &Session::count;
        if (target == "/fan-out") {
            everybody.insert(this);
            handler = &Session::share;
        }
        next();
    }

    void next() {
        buffer.clear();
        ws.async_read(buffer, then(handler));
    }

    void echo() {
        ws.text(ws.got_text());
        ws.async_write(buffer.data(), then(&Session::next));
    }

    void count() {
        if (!ws.got_text()) {
            messages++;
            bytes += buffer.size();
            return next();
        }
        out = "{\"messages\": " + std::to_string(messages) + ", \"bytes\": " + std::to_string(bytes) + "}";
        ws.text(true);
        ws.async_write(net::buffer(out), then(&Session::next));
    }

    void share() {
        auto message = std::make_shared<const std::string>(beast::buffers_to_string(buffer.data()));
        bool text = ws.got_text();
        for (Session* other : everybody) other->send(message, text);
        next();
    }

    void send(Message message, bool text) {
        queue.push_back(std::move(message));
        if (queue.size() > 1) return;
        ws.text(text);
        ws.async_write(net::buffer(*queue.front()), then(&Session::sent));
    }

    void sent() {
        queue.pop_front();
        if (!queue.empty()) ws.async_write(net::buffer(*queue.front()), then(&Session::sent));
    }
};
