#include "cli/listen_flags.h"

#include "base/result.h"

namespace kvasir::cli {

std::vector<Flag> ListenFlags() {
  return {{"host", "ADDRESS",
           "where to listen (default 127.0.0.1; 0.0.0.0: everywhere); may be given several times, "
           "or a list with commas",
           FlagKind::kList},
          {"port", "N", "default 8080; 0: the system chooses one"},
          {"tls-cert", "FILE",
           "serve https: PEM file of the certificate and those between it and its authority; needs "
           "--tls-key; SIGHUP reloads both"},
          {"tls-key", "FILE", "PEM file of the certificate's private key"}};
}

Status ReadTlsFlags(const Args& args, ServerOptions* options) {
  const auto certificate = args.Text("tls-cert"), key = args.Text("tls-key");
  if (!certificate && !key) return {};
  if (!certificate || !key) {
    return FailField(Code::kInvalidArgument, certificate ? "tls-cert" : "tls-key",
                     "needs --{} FILE beside it", certificate ? "tls-key" : "tls-cert");
  }
  KV_ASSIGN(options->tls, TlsFiles::Open(*certificate, *key));
  return {};
}

}  // namespace kvasir::cli
