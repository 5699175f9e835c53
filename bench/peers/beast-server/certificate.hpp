/* A certificate for 127.0.0.1, made at start, and the authority that signed it. */

#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <boost/asio/ssl.hpp>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>

class Certificate {
public:
    Certificate() {
        EVP_PKEY *authority_key = make_key(), *key = make_key();
        X509* authority = make("wirespeed beast-server authority", authority_key);
        extend(authority, authority, NID_basic_constraints, "critical,CA:TRUE");
        extend(authority, authority, NID_key_usage, "critical,keyCertSign,digitalSignature");
        extend(authority, authority, NID_subject_key_identifier, "hash");
        sign(authority, authority, authority_key);
        X509* certificate = make("wirespeed beast-server", key);
        extend(certificate, authority, NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost");
        extend(certificate, authority, NID_authority_key_identifier, "keyid");
        sign(certificate, authority, authority_key);

        auto folder = std::filesystem::temp_directory_path();
        path = folder / ("beast-server-" + std::to_string(getpid()) + ".pem");
        FILE* file = std::fopen(path.c_str(), "w");
        if (!file || !PEM_write_X509(file, authority) || std::fclose(file))
            throw std::runtime_error("cannot write " + path.string());
        check(SSL_CTX_use_certificate(context.native_handle(), certificate));
        check(SSL_CTX_use_PrivateKey(context.native_handle(), key));
    }

    ~Certificate() {
        std::error_code ignored;
        std::filesystem::remove(path, ignored);
    }

    boost::asio::ssl::context context{boost::asio::ssl::context::tls_server};
    /* The PEM file of the authority. */
    std::filesystem::path path;

private:
    static void check(bool good) {
        if (!good) throw std::runtime_error("OpenSSL made no certificate");
    }

    static EVP_PKEY* make_key() {
        EVP_PKEY* key = EVP_EC_gen("P-256");
        check(key);
        return key;
    }

    static X509* make(const char* name, EVP_PKEY* key) {
        static long serial = 0;
        X509* certificate = X509_new();
        check(certificate);
        X509_set_version(certificate, 2);
        ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
        X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
        X509_gmtime_adj(X509_getm_notAfter(certificate), 7 * 24 * 3600);
        X509_set_pubkey(certificate, key);
        X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                                   reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
        return certificate;
    }

    static void extend(X509* certificate, X509* issuer, int kind, const char* value) {
        X509V3_CTX about;
        X509V3_set_ctx(&about, issuer, certificate, nullptr, nullptr, 0);
        X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &about, kind, value);
        check(extension && X509_add_ext(certificate, extension, -1));
        X509_EXTENSION_free(extension);
    }

    static void sign(X509* certificate, X509* issuer, EVP_PKEY* key) {
        X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
        check(X509_sign(certificate, key, EVP_sha256()));
    }
};
