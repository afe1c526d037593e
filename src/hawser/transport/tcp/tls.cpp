#include "hawser/transport/tcp/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "hawser/base/error.h"

namespace hawser::transport::tcp {
namespace {

// A certificate chain that a stranger sends is held in memory before it is verified.
constexpr long kMaxChainBytes = 32 * 1024;

template <auto Free>
struct Releases {
  template <class T>
  void operator()(T* thing) const {
    Free(thing);
  }
};
using SslContext = std::unique_ptr<SSL_CTX, Releases<SSL_CTX_free>>;
using SslSession = std::unique_ptr<SSL, Releases<SSL_free>>;
using BioMethod = std::unique_ptr<BIO_METHOD, Releases<BIO_meth_free>>;
using Certificate = std::unique_ptr<X509, Releases<X509_free>>;

std::string openssl_errors() {
  std::string text;
  while (const unsigned long code = ERR_get_error()) {
    std::array<char, 256> line{};
    ERR_error_string_n(code, line.data(), line.size());
    if (!text.empty()) text += "; ";
    text += line.data();
  }
  return text.empty() ? "no reason given" : text;
}

// ---- a BIO on a socket: OpenSSL's own raises SIGPIPE when the peer is gone ----

int socket_of(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}

int bio_write(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent =
      ::send(socket_of(bio), data, static_cast<std::size_t>(size), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int bio_read(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = ::recv(socket_of(bio), data, static_cast<std::size_t>(size), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(got);
}

long bio_control(BIO* bio, int command, long, void*) {
  switch (command) {
    case BIO_CTRL_FLUSH:
      return 1;
    case BIO_CTRL_EOF:
      return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) ? 1 : 0;
    default:
      return 0;
  }
}

int bio_create(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

BioMethod make_bio_method() {
  BioMethod method(BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "hawser socket"));
  BIO_meth_set_write(method.get(), bio_write);
  BIO_meth_set_read(method.get(), bio_read);
  BIO_meth_set_ctrl(method.get(), bio_control);
  BIO_meth_set_create(method.get(), bio_create);
  return method;
}

std::vector<std::string> names_in(X509* certificate) {
  std::vector<std::string> names;
  auto* alternatives = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; alternatives && i < sk_GENERAL_NAME_num(alternatives); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(alternatives, i);
    if (name->type != GEN_DNS) continue;
    const auto* text = ASN1_STRING_get0_data(name->d.dNSName);
    names.emplace_back(reinterpret_cast<const char*>(text),
                       static_cast<std::size_t>(ASN1_STRING_length(name->d.dNSName)));
  }
  GENERAL_NAMES_free(alternatives);
  if (!names.empty()) return names;
  std::array<char, 256> common{};
  const int size = X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName,
                                             common.data(), common.size());
  if (size > 0) names.emplace_back(common.data(), static_cast<std::size_t>(size));
  return names;
}

}  // namespace

struct TlsContext::Shared {
  SslContext context;
  BioMethod socket_method;
  std::string peer_pattern;
};

bool matches(std::string_view pattern, std::string_view name) {
  const auto star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (name.substr(0, star) != pattern.substr(0, star)) return false;
  const auto rest = pattern.substr(star + 1);
  for (std::size_t skip = star; skip <= name.size(); ++skip) {
    if (matches(rest, name.substr(skip))) return true;
  }
  return false;
}

namespace {

// One lock for both directions, as an SSL object demands. Outgoing bytes are gathered into records
// of full size: a frame's header, body and small tensors leave as one record, and a write that
// OpenSSL wants repeated is repeated with the very same bytes.
class TlsStream final : public ByteStream {
 public:
  TlsStream(std::shared_ptr<TlsContext::Shared> shared, int fd, bool initiator)
      : shared_(std::move(shared)), ssl_(SSL_new(shared_->context.get())) {
    BIO* bio = BIO_new(shared_->socket_method.get());
    if (!ssl_ || !bio) throw Error(ErrorKind::Overloaded, "no memory for a TLS session");
    BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)));
    SSL_set_bio(ssl_.get(), bio, bio);
    initiator ? SSL_set_connect_state(ssl_.get()) : SSL_set_accept_state(ssl_.get());
  }

  std::string_view name() const override { return "tls"; }

  Opening open() override {
    const std::lock_guard lock(mutex_);
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result == 1) return Opening::Done;
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return Opening::AwaitReadable;
      case SSL_ERROR_WANT_WRITE:
        return Opening::AwaitWritable;
      default:
        failure_ = "the TLS handshake failed: " + why_handshake_failed();
        return Opening::Failed;
    }
  }
  std::string failure() const override { return failure_; }

  std::optional<std::string> objection_to(std::string_view node) const override {
    const std::lock_guard lock(mutex_);
    const Certificate certificate(SSL_get1_peer_certificate(ssl_.get()));
    if (!certificate) return "no certificate was shown";
    std::string wanted = shared_->peer_pattern;
    if (const auto at = wanted.find("{node}"); at != std::string::npos) wanted.replace(at, 6, node);
    if (wanted.find('*') == std::string::npos &&
        X509_check_host(certificate.get(), wanted.data(), wanted.size(), 0, nullptr) == 1) {
      return std::nullopt;
    }
    std::string shown;
    for (const std::string& name : names_in(certificate.get())) {
      if (matches(wanted, name)) return std::nullopt;
      shown += shown.empty() ? name : ", " + name;
    }
    return "its certificate is for [" + shown + "], not for " + wanted;
  }

  Moved write(std::span<const iovec> parts) override {
    const std::lock_guard lock(mutex_);
    Moved result;
    for (std::size_t part = 0, offset = 0;;) {
      if (staged_from_ == staged_to_) result.bytes += stage(parts, part, offset);
      if (staged_from_ == staged_to_) break;
      if (!push_staged(result)) break;
    }
    if (result.state != Moved::State::Failed && result.bytes > 0) {
      result.state = Moved::State::Some;
    }
    return result;
  }

  Moved read(std::span<std::byte> into) override {
    const std::lock_guard lock(mutex_);
    ERR_clear_error();
    std::size_t got = 0;
    const int result = SSL_read_ex(ssl_.get(), into.data(), into.size(), &got);
    if (result == 1) return {Moved::State::Some, got, {}};
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE:
        return {};
      case SSL_ERROR_ZERO_RETURN:
        return {Moved::State::Ended, 0, {}};
      default:
        return {Moved::State::Failed, 0, why_failed()};
    }
  }

  bool holds_output() const override {
    const std::lock_guard lock(mutex_);
    return staged_from_ != staged_to_;
  }
  bool holds_input() const override {
    const std::lock_guard lock(mutex_);
    return SSL_has_pending(ssl_.get()) == 1;
  }
  void finish() override {
    const std::lock_guard lock(mutex_);
    ERR_clear_error();
    if (SSL_is_init_finished(ssl_.get())) SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }

 private:
  // Fills the stage from `parts`, beginning at (part, offset), and moves that position on.
  std::size_t stage(std::span<const iovec> parts, std::size_t& part, std::size_t& offset) {
    staged_from_ = staged_to_ = 0;
    while (part < parts.size() && staged_to_ < stage_.size()) {
      const std::size_t take = std::min(parts[part].iov_len - offset, stage_.size() - staged_to_);
      std::memcpy(stage_.data() + staged_to_,
                  static_cast<const std::byte*>(parts[part].iov_base) + offset, take);
      staged_to_ += take;
      offset += take;
      if (offset == parts[part].iov_len) {
        ++part;
        offset = 0;
      }
    }
    return staged_to_;
  }

  // False when the socket takes no more for now, or never again.
  bool push_staged(Moved& result) {
    ERR_clear_error();
    std::size_t written = 0;
    const int outcome =
        SSL_write_ex(ssl_.get(), stage_.data() + staged_from_, staged_to_ - staged_from_, &written);
    if (outcome == 1) {
      staged_from_ += written;
      return true;
    }
    const int error = SSL_get_error(ssl_.get(), outcome);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
      result = {Moved::State::Failed, 0, why_failed()};
      staged_from_ = staged_to_;
    }
    return false;
  }

  std::string why_failed() const {
    const int socket_error = errno;
    if (ERR_peek_error() != 0) return openssl_errors();
    return socket_error ? std::strerror(socket_error) : "the connection ended";
  }
  std::string why_handshake_failed() const {
    const long verdict = SSL_get_verify_result(ssl_.get());
    if (verdict == X509_V_OK) return why_failed();
    return std::string(X509_verify_cert_error_string(verdict)) + " (" + why_failed() + ")";
  }

  std::shared_ptr<TlsContext::Shared> shared_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  SslSession ssl_;
  std::array<std::byte, SSL3_RT_MAX_PLAIN_LENGTH> stage_;
  std::size_t staged_from_ = 0;
  std::size_t staged_to_ = 0;
  std::string failure_;
};

void require(int outcome, const std::string& what) {
  if (outcome != 1) throw Error(ErrorKind::Invalid, "TLS: " + what + ": " + openssl_errors());
}

}  // namespace

TlsContext::TlsContext(const TlsOptions& options) : shared_(std::make_shared<Shared>()) {
  ERR_clear_error();
  shared_->context.reset(SSL_CTX_new(TLS_method()));
  shared_->socket_method = make_bio_method();
  shared_->peer_pattern = options.peer_name;
  SSL_CTX* context = shared_->context.get();
  require(context != nullptr, "cannot create a context");
  require(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION), "this OpenSSL has no TLS 1.3");
  require(SSL_CTX_load_verify_locations(context, options.ca_file.c_str(), nullptr),
          "cannot use the CA file '" + options.ca_file + "'");
  require(SSL_CTX_use_certificate_chain_file(context, options.certificate_file.c_str()),
          "cannot use the certificate file '" + options.certificate_file + "'");
  require(SSL_CTX_use_PrivateKey_file(context, options.key_file.c_str(), SSL_FILETYPE_PEM),
          "cannot use the key file '" + options.key_file + "'");
  require(SSL_CTX_check_private_key(context), "the key does not belong to the certificate");
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_max_cert_list(context, kMaxChainBytes);
  // Connections are long-lived and never resumed.
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE);
}

TlsContext::~TlsContext() = default;

std::unique_ptr<ByteStream> TlsContext::initiate(int fd) const {
  return std::make_unique<TlsStream>(shared_, fd, true);
}

std::unique_ptr<ByteStream> TlsContext::accept(int fd) const {
  return std::make_unique<TlsStream>(shared_, fd, false);
}

}  // namespace hawser::transport::tcp
