// Descriptions for /openapi.json of the fields that several protocols have.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace kvasir {

// Each function returns properties of a body, as JSON Schema without the braces. The limits are the
// constants that the parsers check (kvasir/sampling_ranges.h, api/request_limits.h).

std::string SamplingSchema();         // how to generate
std::string AnswerSchema();           // what the answer to a chat has apart from its content
std::string MessagesSchema();         // a chat's messages, its tools, and what its template reads
std::string AnthropicPromptSchema();  // what the prompt of /v1/messages comes from
std::string AnthropicAnswerSchema();  // how it is answered
std::string ResponsesSchema();        // a body of /v1/responses
std::string OllamaSchema();           // a body of /api/chat or /api/generate
std::string EmbeddingSchema();        // a body of /v1/embeddings
std::string AnyPromptSchema();        // a prompt in each of llama.cpp's forms
std::string SpecialsSchema();         // special tokens in texts
std::string RoleSchema();             // the role of a message: not a property but its schema
std::string AdapterScaleSchema();     // `scale` of an adapter
// Joins several of them.
std::string JoinedFields(std::initializer_list<std::string_view> schemas);

// The pattern of session ids.
inline constexpr const char* kSessionIdPattern = "^sess_[0-9a-f]{32}$";
// The pattern of stored responses' ids.
inline constexpr const char* kResponseIdPattern = "^resp_[0-9a-f]{32}$";

}  // namespace kvasir
