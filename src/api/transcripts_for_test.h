// Answers of every format of thoughts and calls, for tests of what writers make of them.
#pragma once

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/answer_format.h"
#include "chat/answer_parser.h"
#include "source_paths.h"

namespace kvasir {

struct Transcript {
  std::string name, text;
  std::shared_ptr<AnswerReading> reading;
  bool is_broken = false;  // its marks do not stand for a call
};

// Returns those of tests/data/answers.json.
inline std::vector<Transcript> AllTranscripts() {
  std::ifstream file(KVASIR_SOURCE_DIR "/tests/data/answers.json");
  std::vector<Transcript> all;
  for (const nlohmann::json& one : nlohmann::json::parse(file)) {
    const std::string chat_template = one["template"];
    auto reading = std::make_shared<AnswerReading>();
    reading->think = FindThinkMarks(chat_template);
    reading->calls = &FindCallFormat(chat_template);
    reading->tools = {{"weather", {"city"}}, {"clock", {}}};
    reading->begins_inside_thought = one.value("inside", false);
    all.push_back({one["name"], one["answer"], std::move(reading), one.value("broken", false)});
  }
  return all;
}

// Cuts a text into pieces of whole characters, of up to `most` bytes and a few more.
inline std::vector<std::string> CutAtRandom(std::string_view text, size_t most,
                                            std::minstd_rand* random) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    size_t size = std::min<size_t>(text.size(), 1 + (*random)() % most);
    while (size < text.size() && (text[size] & 0xC0) == 0x80) ++size;
    pieces.emplace_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return pieces;
}

}  // namespace kvasir
