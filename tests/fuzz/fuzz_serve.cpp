// Bodies of HTTP requests; the first byte says of which route.
#include "fuzz.h"
#include "serve/parse.h"
#include "sys/error.h"

int fuzz_http_body(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body = hearth::fuzz::text_of(data + 1, size - 1);
  return hearth::fuzz::taken([&] {
    try {
      switch (data[0] % 4) {
        case 0: {
          const hearth::CompletionCall c = hearth::parse_completion_request(body);
          return hearth::fuzz::require(!c.prompts.empty() && !c.chat && c.request.n >= 1);
        }
        case 1: {
          const hearth::CompletionCall c = hearth::parse_chat_request(body);
          return hearth::fuzz::require(!c.messages.empty() && c.chat && c.request.n >= 1);
        }
        case 2:
          return void(hearth::parse_tokenize_request(body));
        default:
          return void(hearth::parse_detokenize_request(body));
      }
    } catch (const hearth::HttpError& e) {
      hearth::fuzz::require(e.status >= 400 && e.status < 500);
      hearth::fail("http", "expected a request, got one that is refused");  // its text may quote
    }
  });
}

hearth::fuzz::Seeds seeds_http_body() {
  using namespace std::string_literals;
  return {
      "\0{\"prompt\":[\"a\",\"b\"],\"n\":2,\"stop\":[\"x\"],\"logprobs\":1,\"echo\":true,\"seed\":7}"s,
      "\0{\"prompt\":[[1,2],[3]],\"max_tokens\":1,\"temperature\":0.5,\"logit_bias\":{\"5\":-100}}"s,
      "\1{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true,\"top_p\":0.9,"
      "\"stream_options\":{\"include_usage\":true}}"s,
      "\1{\"messages\":[{\"role\":\"tool\",\"content\":\"3\",\"tool_call_id\":\"c\"}],\"tools\":[{"
      "\"type\":"
      "\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}],\"tool_choice\":\"required\"}"s,
      "\0{\"prompt\":\"a\",\"structured_outputs\":{\"choice\":[\"x\",\"y\"]}}"s,
      "\2{\"prompt\":\"text\"}"s,
      "\3{\"tokens\":[1,2,3]}"s};
}
