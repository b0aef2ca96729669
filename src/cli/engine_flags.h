// Flags that more than one command takes, and the EngineOptions they make.
#pragma once

#include <memory>
#include <vector>

#include "cli/args.h"
#include "kvasir/engine.h"
#include "text/chat_template.h"

namespace kvasir::cli {

// Of every command: the model, its weights and KV format, threads, the cache folder.
std::vector<Flag> CommonFlags();
// --kv-memory, --ctx-size, --parallel, --cache, --eviction, --block-tokens: of commands that hold a
// cache.
std::vector<Flag> CacheFlags();
// --chat-template-file: of commands that take chats.
std::vector<Flag> TemplateFlags();
// The text of that file, which can be parsed; "": the flag was not given.
Result<std::string> ReadTemplate(const Args& args);
Result<std::unique_ptr<ChatTemplate>> OwnTemplate(const Args& args);  // the same, parsed
// --request-memory: of commands about a server.
std::vector<Flag> RequestFlags();
// --temperature, --top-k, ..., --stop: of commands that generate.
std::vector<Flag> SamplingFlags();
// Flags of parts that are not there yet; each is refused with the part's name.
std::vector<Flag> AbsentFlags();

std::vector<Flag> Join(std::initializer_list<std::vector<Flag>> lists);

// Reads the flags above as far as they were given, and sets the log's level; KVASIR_TARGET is
// checked here too.
Result<EngineOptions> EngineOptionsOf(const Args& args);
// The sampling of a request, its stop strings and max_tokens. Temperature 0 unless given: a command
// line that is run again says the same again.
Status ReadSampling(const Args& args, GenerateRequest& request);
// What the model's makers say of sampling, where no flag does.
void TakeDefaults(const Args& args, const SamplingDefaults& defaults, SamplingParams& sampling);
// --generation-config: of commands that sample.
std::vector<Flag> GenerationConfigFlags();
// Comma-separated ids, in order, as given.
Result<std::vector<TokenId>> ParseIds(const std::string& text);

// Engine::Load with progress on a terminal, after more than a second.
Result<std::unique_ptr<Engine>> LoadEngine(EngineOptions options);

}  // namespace kvasir::cli
