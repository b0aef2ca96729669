#include "http/tls_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/certificates_for_test.h"
#include "base/clock.h"

namespace kvasir {
namespace {

constexpr int64_t kHourS = 3600, kDayOfSeconds = 24 * kHourS;

class TlsFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    certificates_.Sign("own", "DNS:chat.example,DNS:localhost,IP:127.0.0.1,IP:::1",
                       30 * kDayOfSeconds);
    certificates_.Sign("other", "DNS:other.example", 30 * kDayOfSeconds);
    certificates_.Sign("late", "DNS:chat.example", -kHourS);
  }
  std::string CertificateFile(const std::string& name) {
    return certificates_.CertificateFile(name);
  }
  std::string KeyFile(const std::string& name) { return certificates_.KeyFile(name); }

  std::string ErrorOf(const std::string& certificate, const std::string& key) {
    const auto read = TlsCertificate::Read(certificate, key);
    if (read) return "";
    EXPECT_EQ(read.error().code, Code::kInvalidArgument);
    return read.error().text();
  }
  // Puts one of the certificates, with its key, where TlsFiles reads.
  void Put(const std::string& name) {
    constexpr auto kReplace = std::filesystem::copy_options::overwrite_existing;
    std::filesystem::copy_file(CertificateFile(name), CertificateFile("live"), kReplace);
    std::filesystem::copy_file(KeyFile(name), KeyFile("live"), kReplace);
  }

  TestCertificates certificates_{testing::TempDir()};
};

TEST_F(TlsFilesTest, SaysWhomAndHowLongACertificateIsFor) {
  const auto read = TlsCertificate::Read(CertificateFile("own"), KeyFile("own"));
  ASSERT_TRUE(read) << read.error().text();
  const TlsCertificate& own = **read;
  EXPECT_EQ(own.names(), "chat.example, localhost, 127.0.0.1, ::1");
  EXPECT_NE(own.context(), nullptr);
  const int64_t now_s = UnixS();
  EXPECT_NEAR(static_cast<double>(own.begins_unix_s()), static_cast<double>(now_s - 7200), 60);
  EXPECT_NEAR(static_cast<double>(own.ends_unix_s()),
              static_cast<double>(now_s + 30 * kDayOfSeconds), 60);
  EXPECT_TRUE(own.IsValidAt(now_s));
  EXPECT_FALSE(own.IsValidAt(own.ends_unix_s()));
  EXPECT_FALSE(own.IsValidAt(own.begins_unix_s() - 1));
}

TEST_F(TlsFilesTest, WarnsOfWhatItsOwnerShouldChange) {
  ASSERT_EQ(chmod(KeyFile("own").c_str(), 0600), 0);
  const auto own = *TlsCertificate::Read(CertificateFile("own"), KeyFile("own"));
  const int64_t end_s = own->ends_unix_s();
  const auto warning = [&](int64_t now_s) {
    const std::vector<std::string> all = own->Warnings(now_s);
    return all.empty() ? std::string() : all[0].substr(all[0].find("the certificate"));
  };
  EXPECT_EQ(warning(UnixS()), "");
  EXPECT_EQ(warning(end_s - 14 * kDayOfSeconds), "");
  EXPECT_TRUE(
      warning(end_s - 14 * kDayOfSeconds + 1).starts_with("the certificate expires in 13 "));
  EXPECT_TRUE(warning(end_s - 1).starts_with("the certificate expires in 0 days, at "));
  EXPECT_TRUE(warning(end_s).starts_with("the certificate expired at "));
  EXPECT_TRUE(warning(own->begins_unix_s() - 1).starts_with("the certificate is not valid before"));
  ASSERT_EQ(chmod(KeyFile("own").c_str(), 0644), 0);
  const auto open = *TlsCertificate::Read(CertificateFile("own"), KeyFile("own"));
  ASSERT_EQ(open->Warnings(UnixS()).size(), 1u);
  EXPECT_NE(open->Warnings(UnixS())[0].find("can read the key; chmod 600"), std::string::npos);
}

TEST_F(TlsFilesTest, RefusesFilesThatDoNotBelongTogetherOrSayNothing) {
  const std::string mixed = ErrorOf(CertificateFile("own"), KeyFile("other"));
  EXPECT_NE(mixed.find("--tls-key: " + KeyFile("other")), std::string::npos) << mixed;
  EXPECT_NE(mixed.find("--tls-cert " + CertificateFile("own")), std::string::npos) << mixed;
  EXPECT_EQ(ErrorOf("/no/such", KeyFile("own")), "tls_cert: /no/such: No such file or directory");
  EXPECT_EQ(ErrorOf(CertificateFile("own"), "/no/such"),
            "tls_key: /no/such: No such file or directory");
  const std::string key_first = ErrorOf(KeyFile("own"), KeyFile("own"));
  EXPECT_TRUE(key_first.starts_with("tls_cert: " + KeyFile("own") + ": has no certificate"));
  const std::string no_key = ErrorOf(CertificateFile("own"), CertificateFile("own"));
  EXPECT_TRUE(no_key.starts_with("tls_key: " + CertificateFile("own") + ": has no private key"));
  std::filesystem::resize_file(CertificateFile("late"), 200);
  EXPECT_NE(ErrorOf(CertificateFile("late"), KeyFile("late")).find("certificate 1 is damaged"),
            std::string::npos);
}

TEST_F(TlsFilesTest, AReloadThatFailsChangesNothing) {
  Put("own");
  const auto files = *TlsFiles::Open(CertificateFile("live"), KeyFile("live"));
  EXPECT_TRUE(files->Text().starts_with("chat.example, localhost, 127.0.0.1, ::1; until 20"));
  const SSL_CTX* const before = files->certificate().context();
  Put("late");
  const Status late = files->Reload();
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().text().find("the certificate is valid from "), std::string::npos);
  std::filesystem::resize_file(KeyFile("live"), 10);
  EXPECT_FALSE(files->Reload());
  EXPECT_EQ(files->certificate().context(), before);
  Put("other");
  const Status reloaded = files->Reload();
  EXPECT_TRUE(reloaded) << reloaded.error().text();
  EXPECT_EQ(files->certificate().names(), "other.example");
  EXPECT_EQ(files->ends_unix_s(), files->certificate().ends_unix_s());
}

TEST_F(TlsFilesTest, AnExpiredCertificateIsReplacedByAnother) {
  Put("late");
  const auto files = *TlsFiles::Open(CertificateFile("live"), KeyFile("live"));
  EXPECT_FALSE(files->certificate().IsValidAt(UnixS()));
  EXPECT_TRUE(files->Reload());  // not worse than the one before
  Put("own");
  EXPECT_TRUE(files->Reload());
  EXPECT_TRUE(files->certificate().IsValidAt(UnixS()));
}

}  // namespace
}  // namespace kvasir
