// Environment: variables of the environment while a test runs.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace kvasir {

// Sets variables (nullptr: unset); its destructor puts back what they were.
class Environment {
 public:
  Environment(std::initializer_list<std::pair<const char*, const char*>> values) {
    for (const auto& [name, value] : values) {
      const char* before = std::getenv(name);
      before_[name] = before != nullptr ? std::optional<std::string>(before) : std::nullopt;
      Set(name, value);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) Set(name.c_str(), value ? value->c_str() : nullptr);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void Set(const char* name, const char* value) {
    value != nullptr ? setenv(name, value, 1) : unsetenv(name);
  }
  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace kvasir
