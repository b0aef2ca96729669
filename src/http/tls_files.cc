#include "http/tls_files.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "base/result.h"
#include "base/sizes.h"
#include "base/wipe.h"

namespace kvasir {
namespace {

constexpr const char* kCertificateField = "tls_cert";
constexpr const char* kKeyField = "tls_key";
constexpr off_t kMaxPemBytes = 1 << 20;
constexpr int64_t kDayS = 86400, kSoonDays = 14;
// All that TLS 1.2 may use: keys that are forgotten after the connection, and authenticated
// ciphers.
constexpr const char* kCiphers12 = "ECDHE+AESGCM:ECDHE+CHACHA20";

template <typename T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

// Returns why OpenSSL failed on this thread.
std::string OpenSslReason() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason != nullptr ? reason : "unknown error";
}

tl::unexpected<Error> NoMemoryForCertificate() {
  ERR_clear_error();
  return Fail(Code::kExhausted, "TLS: no memory for the certificate");
}

// The bytes of a PEM file, which are zeroed at their end.
struct PemText {
  PemText() = default;
  PemText(PemText&&) = default;
  ~PemText() { Wipe(&bytes); }

  Owned<BIO> Bio() const {
    return {BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())), &BIO_free_all};
  }

  std::string bytes;
  bool is_public = false;  // other users can read the file
};

Result<PemText> ReadPem(const char* field, const std::string& path) {
  const auto fail = [&](std::string_view why) {
    return FailField(Code::kInvalidArgument, field, "{}: {}", path, why);
  };
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return fail(std::strerror(errno));
  struct stat about;
  if (fstat(file.fd(), &about) != 0) return fail(std::strerror(errno));
  if (!S_ISREG(about.st_mode)) return fail("is not a regular file; give a PEM file");
  if (about.st_size > kMaxPemBytes) {
    return fail(
        fmt::format("has {} bytes; at most {} are allowed", about.st_size, off_t{kMaxPemBytes}));
  }
  PemText text;
  text.is_public = (about.st_mode & S_IROTH) != 0;
  text.bytes.resize(static_cast<size_t>(about.st_size));
  const ssize_t got = read(file.fd(), text.bytes.data(), text.bytes.size());
  if (got < 0) return fail(std::strerror(errno));
  if (got != about.st_size) return fail("changed while it was read; try again");
  return text;
}

// Returns the certificates of the file, the server's first.
Result<std::vector<Owned<X509>>> ReadCertificates(const std::string& path) {
  KV_ASSIGN(const PemText text, ReadPem(kCertificateField, path));
  const Owned<BIO> bio = text.Bio();
  if (!bio) return NoMemoryForCertificate();
  std::vector<Owned<X509>> found;
  while (X509* const one = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    found.emplace_back(one, &X509_free);
  }
  const auto last = ERR_peek_last_error();
  const bool is_end =
      ERR_GET_LIB(last) == ERR_LIB_PEM && ERR_GET_REASON(last) == PEM_R_NO_START_LINE;
  if (!found.empty() && is_end) {
    ERR_clear_error();
    return found;
  }
  if (!is_end) {
    return FailField(Code::kInvalidArgument, kCertificateField, "{}: certificate {} is damaged: {}",
                     path, found.size() + 1, OpenSslReason());
  }
  ERR_clear_error();
  return FailField(Code::kInvalidArgument, kCertificateField,
                   "{}: has no certificate; give a PEM file with '-----BEGIN CERTIFICATE-----'",
                   path);
}

// Refuses to give a passphrase: without an answer here, OpenSSL asks for it on the terminal.
int RefusePassphrase(char*, int, int, void* was_asked) {
  *static_cast<bool*>(was_asked) = true;
  return -1;
}

Result<Owned<EVP_PKEY>> ReadKey(const PemText& text, const std::string& path) {
  const Owned<BIO> bio = text.Bio();
  if (!bio) return NoMemoryForCertificate();
  bool is_sealed = false;
  Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &RefusePassphrase, &is_sealed),
                      &EVP_PKEY_free);
  if (key) return key;
  if (is_sealed) {
    ERR_clear_error();
    return FailField(Code::kInvalidArgument, kKeyField,
                     "{}: is encrypted with a passphrase, which a server cannot ask for; write it "
                     "without: openssl pkey -in {} -out NEW.key",
                     path, path);
  }
  ERR_clear_error();
  return FailField(Code::kInvalidArgument, kKeyField,
                   "{}: has no private key; give a PEM file with '-----BEGIN PRIVATE KEY-----'",
                   path);
}

int64_t UnixSOf(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : 0;
}

std::string TimeText(int64_t unix_s) {
  return fmt::format("{:%F %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(unix_s)));
}

// Returns the DNS names and addresses of a certificate, with commas.
std::string NamesOf(X509* certificate) {
  const auto free_names = [](GENERAL_NAMES* names) { GENERAL_NAMES_free(names); };
  const Owned<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(
                                       certificate, NID_subject_alt_name, nullptr, nullptr)),
                                   free_names);
  std::string text;
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS && name->type != GEN_IPADD) continue;
    const ASN1_STRING* const value = name->type == GEN_DNS ? name->d.dNSName : name->d.iPAddress;
    const unsigned char* const bytes = ASN1_STRING_get0_data(value);
    const int size = ASN1_STRING_length(value);
    if (name->type == GEN_IPADD && size != 4 && size != 16) continue;
    char address[INET6_ADDRSTRLEN] = "";
    if (name->type == GEN_IPADD) {
      inet_ntop(size == 4 ? AF_INET : AF_INET6, bytes, address, sizeof(address));
    }
    text += text.empty() ? "" : ", ";
    text += name->type == GEN_DNS
                ? std::string(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size))
                : std::string(address);
  }
  return text.empty() ? "-" : text;
}

// Chooses HTTP/1.1 of the protocols that a client offers.
int ChooseProtocol(SSL*, const unsigned char** chosen, unsigned char* chosen_size,
                   const unsigned char* offered, unsigned int offered_size, void*) {
  static constexpr unsigned char kHttp11[] = "\x08http/1.1";
  const int found = SSL_select_next_proto(const_cast<unsigned char**>(chosen), chosen_size, kHttp11,
                                          sizeof(kHttp11) - 1, offered, offered_size);
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

// Returns a context without a certificate; null: no memory.
std::shared_ptr<SSL_CTX> MakeContext() {
  std::shared_ptr<SSL_CTX> made(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  SSL_CTX* const context = made.get();
  if (context == nullptr) return made;
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(context, kCiphers12);
  // A renegotiation is work that a client may ask for without an end. What was read is zeroed
  // (docs/decisions/0028-zeroed-memory.md). HTTP says itself where its bytes end.
  SSL_CTX_set_options(
      context, SSL_OP_NO_RENEGOTIATION | SSL_OP_CLEANSE_PLAINTEXT | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);  // other connections have their turn in between
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);  // clients keep tickets instead
  SSL_CTX_set_alpn_select_cb(context, &ChooseProtocol, nullptr);
  return made;
}

}  // namespace

Result<std::shared_ptr<const TlsCertificate>> TlsCertificate::Read(
    const std::string& certificate_path, const std::string& key_path) {
  ERR_clear_error();
  KV_ASSIGN(std::vector<Owned<X509>> certificates, ReadCertificates(certificate_path));
  KV_ASSIGN(const PemText key_text, ReadPem(kKeyField, key_path));
  KV_ASSIGN(const Owned<EVP_PKEY> key, ReadKey(key_text, key_path));
  X509* const own = certificates.front().get();
  if (X509_check_private_key(own, key.get()) != 1) {
    ERR_clear_error();
    return Fail(Code::kInvalidArgument,
                "--tls-key: {} is not the key of the first certificate in --tls-cert {}; give the "
                "key that it was made with",
                key_path, certificate_path);
  }
  const std::shared_ptr<TlsCertificate> made(new TlsCertificate());
  made->context_ = MakeContext();
  SSL_CTX* const context = made->context_.get();
  if (context == nullptr) return NoMemoryForCertificate();
  if (SSL_CTX_use_certificate(context, own) != 1 ||
      SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return FailField(Code::kInvalidArgument, kCertificateField, "{}: OpenSSL refuses it: {}",
                     certificate_path, OpenSslReason());
  }
  for (size_t i = 1; i < certificates.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, certificates[i].get()) != 1) {
      return FailField(Code::kInvalidArgument, kCertificateField,
                       "{}: OpenSSL refuses certificate {}: {}", certificate_path, i + 1,
                       OpenSslReason());
    }
  }
  made->names_ = NamesOf(own);
  made->begins_unix_s_ = UnixSOf(X509_get0_notBefore(own));
  made->ends_unix_s_ = UnixSOf(X509_get0_notAfter(own));
  made->certificate_path_ = certificate_path;
  made->key_path_ = key_path;
  made->is_key_public_ = key_text.is_public;
  return made;
}

std::vector<std::string> TlsCertificate::Warnings(int64_t now_unix_s) const {
  std::vector<std::string> warnings;
  const std::string at = "--tls-cert: " + certificate_path_ + ": the certificate ";
  const std::string end = TimeText(ends_unix_s_);
  if (now_unix_s >= ends_unix_s_) {
    warnings.push_back(at + "expired at " + end + "; clients refuse it");
  } else if (now_unix_s < begins_unix_s_) {
    warnings.push_back(at + "is not valid before " + TimeText(begins_unix_s_) +
                       "; clients refuse it until then");
  } else if (ends_unix_s_ - now_unix_s < kSoonDays * kDayS) {
    warnings.push_back(at + fmt::format("expires in {}, at {}; put a new one there and send SIGHUP",
                                        CountText((ends_unix_s_ - now_unix_s) / kDayS, "day"),
                                        end));
  }
  if (is_key_public_) {
    warnings.push_back("--tls-key: " + key_path_ +
                       ": every user of this machine can read the key; chmod 600 it");
  }
  return warnings;
}

Result<std::unique_ptr<TlsFiles>> TlsFiles::Open(std::string certificate_path,
                                                 std::string key_path) {
  std::unique_ptr<TlsFiles> files(new TlsFiles(std::move(certificate_path), std::move(key_path)));
  KV_ASSIGN(std::shared_ptr<const TlsCertificate> certificate,
            TlsCertificate::Read(files->certificate_path_, files->key_path_));
  files->Use(std::move(certificate));
  return files;
}

Status TlsFiles::Reload() {
  auto read = TlsCertificate::Read(certificate_path_, key_path_);
  if (!read) {  // for the log, which knows no fields
    Error error = std::move(read).error();
    const bool is_key = error.field == kKeyField;
    if (error.field) error.message = (is_key ? "--tls-key: " : "--tls-cert: ") + error.message;
    error.field.reset();
    return tl::unexpected(std::move(error));
  }
  const int64_t now_s = UnixS();
  if (!(*read)->IsValidAt(now_s) && certificate_->IsValidAt(now_s)) {
    return Fail(Code::kInvalidArgument,
                "--tls-cert: {}: the certificate is valid from {} to {}, and it is {}",
                certificate_path_, TimeText((*read)->begins_unix_s()),
                TimeText((*read)->ends_unix_s()), TimeText(now_s));
  }
  Use(*std::move(read));
  return {};
}

// Takes the certificate, and logs its warnings.
void TlsFiles::Use(std::shared_ptr<const TlsCertificate> certificate) {
  certificate_ = std::move(certificate);
  ends_unix_s_.store(certificate_->ends_unix_s(), std::memory_order_relaxed);
  for (const std::string& warning : certificate_->Warnings(UnixS())) {
    Log(LogLevel::kWarning, warning);
  }
}

std::string TlsFiles::Text() const {
  return fmt::format("{}; until {}", certificate_->names(), TimeText(certificate_->ends_unix_s()));
}

}  // namespace kvasir
