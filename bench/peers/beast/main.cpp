#include <boost/version.hpp>
#include <exception>
#include <string>

#include "async.hpp"
#include "blocking.hpp"

template <template <class> class Way>
workload open_either() {
    return parse_address().tls ? Way<Secure>::open() : Way<Plain>::open();
}

int main(int count, char** arguments) {
    static const style styles[] = {
        {"sync", "round-trip stream-in send send-each", open_either<Blocking>},
        {"async", "round-trip stream-in send send-each pipelined", open_either<Async>},
        {nullptr, nullptr, nullptr},
    };
    const std::string version = std::to_string(BOOST_VERSION / 100000) + "." +
                                std::to_string(BOOST_VERSION / 100 % 1000) + " with " +
                                OpenSSL_version(OPENSSL_VERSION) + ", cc " __VERSION__;
    try {
        return run(count, arguments, version.c_str(), 1, styles);
    } catch (const std::exception& error) {
        fail("%s", error.what());
    }
}
