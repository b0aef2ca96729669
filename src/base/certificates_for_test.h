// TestCertificates: a certificate authority and what it signs, for tests of TLS.
#pragma once

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "base/check.h"

namespace kvasir {

// Writes PEM files into a folder that ends with it.
class TestCertificates {
 public:
  explicit TestCertificates(const std::string& parent) {
    std::string pattern = parent + "/kvasir-tls-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    authority_ = Make("authority", "", 3600, nullptr);
  }
  ~TestCertificates() { std::filesystem::remove_all(folder_); }

  std::string ca_file() const { return CertificateFile("authority"); }
  // Signs a certificate for `alternative`, such as "IP:127.0.0.1", that ends in so many seconds.
  void Sign(const std::string& name, const std::string& alternative, long ends_in_s) {
    Make(name, alternative, ends_in_s, &authority_);
  }
  std::string CertificateFile(const std::string& name) const {
    return folder_ + "/" + name + ".crt";
  }
  std::string KeyFile(const std::string& name) const { return folder_ + "/" + name + ".key"; }

 private:
  struct Signed {
    std::shared_ptr<EVP_PKEY> key;
    std::shared_ptr<X509> certificate;
  };

  Signed Make(const std::string& name, const std::string& alternative, long ends_in_s,
              const Signed* by) {
    Signed made{{EVP_EC_gen("P-256"), &EVP_PKEY_free}, {X509_new(), &X509_free}};
    X509* const one = made.certificate.get();
    X509_set_version(one, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(one), ++serial_);
    X509_gmtime_adj(X509_getm_notBefore(one), -7200);
    X509_gmtime_adj(X509_getm_notAfter(one), ends_in_s);
    const std::string subject = folder_.substr(folder_.size() - 6) + " " + name;  // not another's
    X509_NAME_add_entry_by_txt(X509_get_subject_name(one), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(subject.c_str()), -1, -1, 0);
    X509* const issuer = by ? by->certificate.get() : one;
    X509_set_issuer_name(one, X509_get_subject_name(issuer));
    X509_set_pubkey(one, made.key.get());
    if (by == nullptr) AddExtension(one, NID_basic_constraints, "critical,CA:TRUE");
    if (!alternative.empty()) AddExtension(one, NID_subject_alt_name, alternative);
    KV_CHECK(X509_sign(one, (by ? by->key : made.key).get(), EVP_sha256()) > 0);
    Write(CertificateFile(name), [&](FILE* file) { return PEM_write_X509(file, one); });
    Write(KeyFile(name), [&](FILE* file) {
      return PEM_write_PrivateKey(file, made.key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
    return made;
  }
  static void AddExtension(X509* one, int kind, const std::string& value) {
    X509_EXTENSION* const made = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str());
    KV_CHECK(made != nullptr && X509_add_ext(one, made, -1) == 1);
    X509_EXTENSION_free(made);
  }
  template <typename WriteTo>
  static void Write(const std::string& path, const WriteTo& write_to) {
    FILE* const file = std::fopen(path.c_str(), "w");
    KV_CHECK(file != nullptr && write_to(file) == 1 && std::fclose(file) == 0);
  }

  std::string folder_;
  long serial_ = 0;
  Signed authority_;
};

}  // namespace kvasir
