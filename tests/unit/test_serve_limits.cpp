// What the routes refuse: missing keys, long prompts, long answers, full queues.
#include <gtest/gtest.h>

#include "serving.h"

namespace hearth {
namespace {

using nlohmann::json;

TEST_F(Serving, AsksForItsKey) {
  open({.http = {.api_key = "sk-secret"}});
  const auto status = [&](const std::string& path, const std::string& authorization) {
    try {
      service_->check_head({.method = "GET", .path = path, .authorization = authorization});
    } catch (const HttpError& e) { return e.status; }
    return 200;
  };
  for (const char* path : {"/metrics", "/v1/models", "/tokenizer_info", "/nowhere"}) {
    EXPECT_EQ(status(path, ""), 401) << path;
    EXPECT_EQ(status(path, "Bearer sk-other"), 401) << path;
    EXPECT_EQ(status(path, "sk-secret"), 401) << path;
  }
  EXPECT_EQ(status("/v1/models", "Bearer sk-secret"), 200);
  EXPECT_EQ(status("/health", ""), 200);
}

TEST_F(Serving, RefusesWhatDoesNotFit) {
  open({.max_prompt_tokens = 100, .max_new_tokens = 200});
  const std::string long_text(101, 'a'), huge_text(100000, 'a');
  EXPECT_EQ(error("/v1/completions", R"({"prompt":")" + long_text + "\"}").code,
            "context_length_exceeded");
  EXPECT_EQ(error("/v1/completions", R"({"prompt":")" + huge_text + "\"}").code,
            "context_length_exceeded");
  const HttpError chat = error("/v1/chat/completions",
                               R"({"messages":[{"role":"user","content":")" + huge_text + "\"}]}");
  EXPECT_EQ(chat.code, "context_length_exceeded");
  EXPECT_EQ(chat.param, "messages");
  EXPECT_NE(std::string(chat.what()).find("bytes of text"), std::string::npos)
      << "it is not encoded first: " << chat.what();
  EXPECT_EQ(error("/v1/completions", R"({"prompt":"abc","max_tokens":254})").status, 400);
  EXPECT_EQ(error("/v1/completions", R"({"prompt":[9999]})").status, 400);
  EXPECT_EQ(error("/v1/completions", R"({"prompt":["a",[1]]})").param, "prompt");
  EXPECT_EQ(error("/v1/completions", R"({"model":"other"})").status, 404);
  EXPECT_EQ(error("/v1/models/other").code, "model_not_found");
  const HttpError unnamed = error("/v1/models/");
  EXPECT_EQ(unnamed.status, 404);
  const auto body = nlohmann::json::parse(error_body(unnamed))["error"];
  EXPECT_EQ(body["type"], "not_found_error");
  EXPECT_NE(std::string(body["message"]).find("/v1/models?"), std::string::npos) << body;
  EXPECT_EQ(error("/nowhere").status, 404);
  EXPECT_EQ(error("/v1/completions").status, 405);
  EXPECT_EQ(error("/v1/completions", "{").status, 400);
  EXPECT_EQ(error("/v1/completions", R"({"prompt":"a","stop_token_ids":[5000]})").status, 400);
  // A chat that names no length gets what the limit leaves.
  EXPECT_LE(answer("/v1/chat/completions",
                   R"({"messages":[{"role":"user","content":"a"}],"n":4,"ignore_eos":true})")
                ["usage"]["completion_tokens"],
            200);
  EXPECT_EQ(metrics().value("hearth:kv_blocks_used"), 0);
}

TEST_F(Serving, AnAnswerListsOnlySoMuch) {
  open({.max_answer_entries = 100});
  const auto param = [&](const std::string& fields) {
    return error("/v1/completions", "{" + fields + "}").param;
  };
  const std::string ten = R"("prompt":"aaaaaaaaaa")";
  EXPECT_EQ(param(ten + R"(,"max_tokens":10,"echo":true,"logprobs":4)"), "");
  EXPECT_EQ(param(ten + R"(,"max_tokens":11,"echo":true,"logprobs":4)"), "logprobs");
  EXPECT_EQ(param(ten + R"(,"max_tokens":20,"logprobs":4)"), "");
  EXPECT_EQ(param(ten + R"(,"max_tokens":21,"logprobs":4)"), "logprobs");
  // Every choice and every prompt is echoed.
  EXPECT_EQ(param(ten + R"(,"n":2,"max_tokens":0,"echo":true,"logprobs":4)"), "");
  EXPECT_EQ(param(ten + R"(,"n":2,"max_tokens":1,"echo":true,"logprobs":4)"), "logprobs");
  EXPECT_EQ(param(R"("prompt":[[1,2],[3,4,5]],"max_tokens":0,"echo":true,"logprobs":19)"), "");
  EXPECT_EQ(param(R"("prompt":[[1,2],[3,4,5,6]],"max_tokens":0,"echo":true,"logprobs":19)"),
            "logprobs");
  // Without log-probabilities a token is one entry.
  EXPECT_EQ(param(ten + R"(,"max_tokens":90,"echo":true)"), "");
  EXPECT_EQ(param(ten + R"(,"max_tokens":91,"echo":true)"), "echo");
  EXPECT_EQ(param(ten + R"(,"n":5,"max_tokens":21,"stream":true)"), "max_tokens");
  const HttpError e = error("/v1/completions", "{" + ten + R"(,"max_tokens":30,"logprobs":4})");
  EXPECT_EQ(e.status, 400);
  EXPECT_STREQ(e.what(),
               "[logprobs] expected (echoed + new tokens of all choices) x (logprobs + 1) of at "
               "most 100, got (0 + 30) x 5");
  // A chat that names no length gets what the limit leaves.
  const std::string chat =
      R"({"messages":[{"role":"user","content":"a"}],"min_tokens":20,"logprobs":true,)";
  EXPECT_EQ(
      answer("/v1/chat/completions", chat + R"("top_logprobs":4})")["usage"]["completion_tokens"],
      20);
  EXPECT_EQ(error("/v1/chat/completions", chat + R"("top_logprobs":19,"n":6})").param, "logprobs");
  EXPECT_EQ(metrics().value("hearth:kv_blocks_used"), 0);
}

// The echoes are counted as they are sent: a control character has six bytes there.
TEST_F(Serving, AStreamEchoesOnlySoMuch) {
  open({.http = {.max_output_bytes = 4096}});
  std::string prompt;
  for (int i = 0; i < 200; ++i) prompt += "\\u0001";
  const auto body = [&](int n, const char* more) {
    return R"({"max_tokens":1,"n":)" + std::to_string(n) + more + R"(,"prompt":")" + prompt + "\"}";
  };
  const char* stream = R"(,"echo":true,"stream":true)";
  EXPECT_EQ(error("/v1/completions", body(54, stream)).status, 0);
  const HttpError e = error("/v1/completions", body(55, stream));
  EXPECT_EQ(e.status, 400);
  EXPECT_EQ(e.param, "echo");
  EXPECT_STREQ(
      e.what(),
      "[echo] expected at most 65536 bytes of echoed prompts over all choices of a stream, "
      "got 66110");
  EXPECT_EQ(error("/v1/completions", body(55, R"(,"echo":true)")).status, 0);
  EXPECT_EQ(error("/v1/completions", body(55, R"(,"stream":true)")).status, 0);
}

// A completion that the context ends is one that its length ended, as OpenAI's clients know it.
TEST_F(Serving, TheEndOfTheContextIsFinishReasonLength) {
  open();
  const json chat = answer("/v1/chat/completions",
                           R"({"messages":[{"role":"user","content":"a"}],"ignore_eos":true})");
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chat["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(chat["usage"]["completion_tokens"], served_context - 4);
  EXPECT_EQ(chat["usage"]["total_tokens"], served_context);
  // More than fits, when asked for, is refused and not cut.
  const HttpError e = error("/v1/completions", R"({"prompt":"abc","max_tokens":254})");
  EXPECT_EQ(e.code, "context_length_exceeded");
  EXPECT_EQ(e.param, "max_tokens");
  EXPECT_EQ(
      answer("/v1/completions",
             R"({"prompt":"abc","max_tokens":253,"ignore_eos":true})")["usage"]["total_tokens"],
      served_context);
}

// The default of 16 tokens is none that the client has asked for.
TEST_F(Serving, ACompletionWithoutALengthEndsWithTheContext) {
  open();
  const auto body = [](int64_t tokens) {
    return R"({"ignore_eos":true,"prompt":")" + std::string(size_t(tokens), 'a') + "\"}";
  };
  EXPECT_EQ(answer("/v1/completions", body(9))["usage"]["completion_tokens"], 16);
  const json last = answer("/v1/completions", body(served_context - 5));
  EXPECT_EQ(last["usage"]["completion_tokens"], 5);
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  const HttpError full = error("/v1/completions", body(served_context));
  EXPECT_EQ(full.code, "context_length_exceeded");
  EXPECT_EQ(full.param, "prompt");
  const std::string two = R"({"ignore_eos":true,"prompt":["aa",")" +
                          std::string(size_t(served_context - 1), 'a') + R"("]})";
  EXPECT_EQ(answer("/v1/completions", two)["usage"]["completion_tokens"], 17);
}

TEST_F(Serving, LimitsWhatIsTokenized) {
  open({.max_messages = 3, .max_tokenize_bytes = 10, .max_detokenize_ids = 4});
  const auto messages = [](int count, const std::string& text) {
    std::string s;
    for (int i = 0; i < count; ++i)
      s += (i ? "," : "") + (R"({"role":"user","content":")" + text + "\"}");
    return R"({"messages":[)" + s + "]}";
  };
  EXPECT_EQ(answer("/tokenize", R"({"prompt":"0123456789"})")["count"], 10);
  EXPECT_EQ(error("/tokenize", R"({"prompt":"0123456789a"})").param, "prompt");
  EXPECT_EQ(error("/tokenize", messages(3, "abc")).status, 0);
  EXPECT_EQ(error("/tokenize", messages(3, "abcd")).param, "messages");
  EXPECT_EQ(error("/tokenize", messages(4, "")).param, "messages");
  EXPECT_EQ(error("/tokenize", messages(4, "")).status, 400);
  EXPECT_EQ(
      error("/tokenize", R"({"messages":[{"role":"assistant","content":"","tool_calls":[)"
                         R"({"type":"function","function":{"name":"f","arguments":"{}"}}]}]})")
          .param,
      "messages");
  EXPECT_EQ(error("/v1/chat/completions", messages(4, "")).param, "messages");
  EXPECT_EQ(answer("/detokenize", R"({"tokens":[97,98,97,98]})")["prompt"], "abab");
  EXPECT_EQ(error("/detokenize", R"({"tokens":[97,98,97,98,97]})").param, "tokens");
}

TEST_F(Serving, AFullQueueIs429) {
  open({.batch = 1, .queue = 2});
  const std::string body = R"({"prompt":"a","max_tokens":50,"ignore_eos":true})";
  std::vector<std::shared_ptr<FakeClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_shared<FakeClient>());
    begin("/v1/completions", body, clients.back());
  }
  try {
    begin("/v1/completions", body, std::make_shared<FakeClient>());
    FAIL();
  } catch (const HttpError& e) { EXPECT_EQ(e.status, 429); }
  settle();
  for (const auto& c : clients) EXPECT_TRUE(c->done);
  ask("/v1/completions", body);  // there is room again
}

TEST_F(Serving, AFullQueueIs429BeforeTheBodyIsRead) {
  open({.batch = 1, .queue = 0});
  const auto client = std::make_shared<FakeClient>();
  begin("/v1/completions", R"({"prompt":"a","max_tokens":5})", client);
  for (const Route& route : routes()) {
    int status = 200;
    try {
      service_->check_queue(route);
    } catch (const HttpError& e) { status = e.status; }
    EXPECT_EQ(status, route.id == Route::completions || route.id == Route::chat ? 429 : 200)
        << route.path;
  }
  settle();
  EXPECT_TRUE(client->done);
}

}  // namespace
}  // namespace hearth
