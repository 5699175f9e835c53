/* A WebSocket server of Boost.Beast on 127.0.0.1, in one thread. The contract of the servers is in METHODOLOGY.md;
 * with --until-eof it ends with its standard input.
 */

#include <sys/resource.h>
#include <unistd.h>

#include <boost/version.hpp>
#include <cstdio>
#include <optional>

#include "session.hpp"

static net::io_context context{1};

/* Accepts until the process ends. `tls`: its settings; none for a plain port. */
class Listener {
public:
    explicit Listener(ssl::context* tls) : tls{tls}, acceptor{context, {net::ip::address_v4::loopback(), 0}} {
        acceptor.listen(4096);
        accept();
    }

    unsigned port() const { return acceptor.local_endpoint().port(); }

private:
    ssl::context* tls;
    tcp::acceptor acceptor;

    void accept() {
        acceptor.async_accept([this](beast::error_code error, tcp::socket socket) {
            if (!error && tls) std::make_shared<Session<Secure>>(std::move(socket), *tls)->run();
            else if (!error) std::make_shared<Session<Plain>>(std::move(socket))->run();
            accept();
        });
    }
};

/* `certificate`: a PEM file with its key, for TLS on another port; `ca`: its authority, for clients. */
static void serve(const std::string& certificate, const std::string& ca, bool until_eof) {
    Listener plain{nullptr};
    ssl::context tls{ssl::context::tls_server};
    std::optional<Listener> secure;
    std::printf("listening ws://127.0.0.1:%u\n", plain.port());
    if (!certificate.empty()) {
        tls.use_certificate_chain_file(certificate);
        tls.use_private_key_file(certificate, ssl::context::pem);
        secure.emplace(&tls);
        std::printf("listening wss://127.0.0.1:%u ca=%s\n", secure->port(), ca.c_str());
    }
    std::fflush(stdout);
    net::signal_set signals{context, SIGINT, SIGTERM};
    signals.async_wait([](auto...) { context.stop(); });
    net::posix::stream_descriptor input{context};
    char byte;
    if (until_eof) {
        input.assign(dup(STDIN_FILENO));
        input.async_read_some(net::buffer(&byte, 1), [](auto...) { context.stop(); });
    }
    context.run();
}

int main(int count, char** arguments) {
    std::string certificate, ca;
    bool until_eof = false;
    for (int i = 1; i < count; i++) {
        std::string name = arguments[i];
        if (name == "--version") {
            std::printf("%d.%d with %s, cc " __VERSION__ "\n", BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000,
                        OpenSSL_version(OPENSSL_VERSION));
            return 0;
        }
        if (name == "--until-eof") until_eof = true;
        else if (name == "--deflate") settings.deflate = true;
        else if (name == "--ping-interval" && i + 1 < count)
            settings.ping_interval = std::chrono::milliseconds{static_cast<long>(1000 * std::atof(arguments[++i]))};
        else if (name == "--certificate" && i + 1 < count) certificate = arguments[++i];
        else if (name == "--ca" && i + 1 < count) ca = arguments[++i];
        else {
            std::fprintf(stderr, "usage: beast-server [--certificate PEM [--ca PEM]] [--deflate] [--ping-interval SECONDS] "
                                 "[--until-eof] [--version]\n");
            return 2;
        }
    }
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    try {
        serve(certificate, ca, until_eof);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "beast-server: %s\n", error.what());
        return 1;
    }
    /* What still waits is not taken apart. */
    std::_Exit(0);
}
