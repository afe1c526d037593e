#include "support/test_certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdlib.h>

#include <cstdio>
#include <stdexcept>

namespace hawser::testing {
namespace {

using Key = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;
using Certificate = std::unique_ptr<X509, void (*)(X509*)>;
using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

constexpr long kDay = 24 * 60 * 60;

void insist(bool done, const char* what) {
  if (!done) throw std::runtime_error(std::string("test certificates: ") + what);
}

Key make_key() {
  Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  insist(key != nullptr, "no key");
  return key;
}

void add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  insist(extension && X509_add_ext(certificate, extension, -1) == 1, "no extension");
  X509_EXTENSION_free(extension);
}

Certificate make_certificate(EVP_PKEY* key, const std::string& name, long serial) {
  Certificate certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kDay);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), kDay);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

File open_to_write(const std::filesystem::path& path) {
  File file(std::fopen(path.c_str(), "w"), std::fclose);
  insist(file != nullptr, "cannot write");
  return file;
}

}  // namespace

struct TestAuthority::Keys {
  Key key = make_key();
  Certificate certificate = make_certificate(key.get(), "hawser test authority", 1);
};

TestAuthority::TestAuthority() {
  std::string name = (std::filesystem::temp_directory_path() / "hawser-ca-XXXXXX").string();
  insist(::mkdtemp(name.data()) != nullptr, "no temporary folder");
  folder_ = name;
  keys_ = std::make_unique<Keys>();
  X509* own = keys_->certificate.get();
  X509_set_issuer_name(own, X509_get_subject_name(own));
  add_extension(own, own, NID_basic_constraints, "critical,CA:TRUE");
  insist(X509_sign(own, keys_->key.get(), EVP_sha256()) > 0, "cannot sign");
  PEM_write_X509(open_to_write(folder_ / "ca.pem").get(), own);
}

TestAuthority::~TestAuthority() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

transport::tcp::TlsOptions TestAuthority::issue(const std::string& node) {
  const Key key = make_key();
  const Certificate certificate = make_certificate(key.get(), node, ++serial_);
  X509* issuer = keys_->certificate.get();
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer));
  add_extension(certificate.get(), issuer, NID_subject_alt_name, "DNS:" + node);
  insist(X509_sign(certificate.get(), keys_->key.get(), EVP_sha256()) > 0, "cannot sign");

  const std::string stem = std::to_string(serial_);
  transport::tcp::TlsOptions options;
  options.ca_file = folder_ / "ca.pem";
  options.certificate_file = folder_ / (stem + ".pem");
  options.key_file = folder_ / (stem + ".key");
  PEM_write_X509(open_to_write(options.certificate_file).get(), certificate.get());
  PEM_write_PrivateKey(open_to_write(options.key_file).get(), key.get(), nullptr, nullptr, 0,
                       nullptr, nullptr);
  return options;
}

}  // namespace hawser::testing
