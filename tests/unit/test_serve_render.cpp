// Answers as text: what OpenAI's clients and Prometheus read, to the field.
#include <gtest/gtest.h>

#include "http/http.h"
#include "prometheus.h"
#include "serve/metrics.h"
#include "serve/render.h"
#include "served_folder.h"

namespace hearth {
namespace {

using nlohmann::json;

const ResponseHead completion_head{.chat = false, .id = "cmpl-1", .model = "m", .created = 5};
const ResponseHead chat_head{.chat = true, .id = "chatcmpl-1", .model = "m", .created = 5};

json as_json(const nlohmann::ordered_json& j) { return json::parse(dump_json(j)); }

TEST(Render, Completion) {
  const ChoicePart part{.index = 1, .text = "ab", .finish_reason = "length"};
  const json j = as_json(render_response(served_tokenizer(), completion_head, {&part, 1}, {3, 2}));
  EXPECT_EQ(j, json::parse(R"({"id":"cmpl-1","object":"text_completion","created":5,"model":"m",
      "choices":[{"index":1,"text":"ab","logprobs":null,"finish_reason":"length"}],
      "usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}})"));
}

TEST(Render, ChatWithLogprobs) {
  const std::vector<TokenLogprob> scored{{'a', -0.5f, {{'a', -0.5f}, {0xc3, -2}}}};
  const ChoicePart part{.text = "a", .finish_reason = "stop", .logprobs = &scored};
  const json j = as_json(render_response(served_tokenizer(), chat_head, {&part, 1}, {1, 1}));
  EXPECT_EQ(j["object"], "chat.completion");
  EXPECT_EQ(j["choices"][0]["message"],
            json::parse(R"({"role":"assistant","content":"a","refusal":null})"));
  EXPECT_EQ(j["choices"][0]["logprobs"], json::parse(R"({"refusal":null,"content":[
      {"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[
        {"token":"a","logprob":-0.5,"bytes":[97]},
        {"token":"bytes:\\xc3","logprob":-2.0,"bytes":[195]}]}]})"));
}

// What lm-evaluation-harness compares: null first, and equal floats printed alike.
TEST(Render, PromptScores) {
  const float p = -0.1f, q = -7.0f / 3;
  const std::vector<TokenLogprob> scored{
      unpredicted('x'), {'y', p, {{'y', p}}}, {'z', q, {{'y', p}}}};
  const ChoicePart part{.text = "xyz", .finish_reason = "length", .logprobs = &scored};
  const std::string text =
      dump_json(render_response(served_tokenizer(), completion_head, {&part, 1}, {2, 1}));
  const json l = json::parse(text)["choices"][0]["logprobs"];
  EXPECT_EQ(l["tokens"], (json{"x", "y", "z"}));
  EXPECT_EQ(l["text_offset"], (json{0, 1, 2}));
  EXPECT_TRUE(l["token_logprobs"][0].is_null() && l["top_logprobs"][0].is_null());
  EXPECT_EQ(l["token_logprobs"][1], l["top_logprobs"][1]["y"]);
  EXPECT_EQ(l["top_logprobs"][2].size(), 2u) << "the token itself stands beside the likeliest";
  EXPECT_EQ(l["token_logprobs"][2].get<float>(), q);
  const std::string printed = json(p).dump();
  EXPECT_NE(text.find("[null," + printed), std::string::npos) << text;
  EXPECT_NE(text.find("{\"y\":" + printed), std::string::npos) << text;
}

TEST(Render, Chunks) {
  const Tokenizer t = served_tokenizer();
  const auto choice = [&](const ResponseHead& head, const ChoicePart& part) {
    return as_json(render_chunk(t, head, part, false))["choices"][0];
  };
  EXPECT_EQ(choice(chat_head, {.opens = true})["delta"],
            json::parse(R"({"role":"assistant","content":""})"));
  EXPECT_EQ(choice(chat_head, {.text = "a"})["delta"], json::parse(R"({"content":"a"})"));
  const json last = choice(chat_head, {.finish_reason = "stop"});
  EXPECT_EQ(last["delta"], json::object());
  EXPECT_EQ(last["finish_reason"], "stop");
  EXPECT_EQ(choice(completion_head, {.text = "a"})["text"], "a");
  EXPECT_FALSE(render_chunk(t, chat_head, {}, false).contains("usage"));
  EXPECT_TRUE(render_chunk(t, chat_head, {}, true)["usage"].is_null());
  const json usage = as_json(render_usage_chunk(chat_head, {7, 4}));
  EXPECT_EQ(usage["choices"], json::array());
  EXPECT_EQ(usage["usage"]["total_tokens"], 11);
}

TEST(Render, TokensThatAreNoText) {
  const Tokenizer t = served_tokenizer();
  EXPECT_EQ(token_text(t, 'a'), "a");
  EXPECT_EQ(token_text(t, 0xe2), "bytes:\\xe2");
  EXPECT_EQ(token_text(t, served_eos), "<|end|>");
  EXPECT_EQ(token_text(t, 9999), "token_id:9999");
  EXPECT_EQ(characters("aé€"), 3);
  EXPECT_EQ(dump_json("a\xff"), "\"a\xEF\xBF\xBD\"");
}

TEST(Http, ErrorsHaveOneShape) {
  const HttpResponse r = error_response(HttpError(400, "[n] expected", "invalid_value", "n"));
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(json::parse(r.body),
            json::parse(R"({"error":{"message":"[n] expected","type":"invalid_request_error",
                "param":"n","code":"invalid_value"}})"));
  const HttpResponse busy = error_response(HttpError(429, "x"));
  EXPECT_EQ(json::parse(busy.body)["error"]["type"], "rate_limit_error");
  EXPECT_EQ(busy.headers.at(0).first, "Retry-After");
}

TEST(Http, SecretsAreCompared) {
  EXPECT_TRUE(same_secret("sk-1", "sk-1"));
  for (const char* other : {"", "sk-", "sk-2", "sk-11", "SK-1"})
    EXPECT_FALSE(same_secret(other, "sk-1")) << other;
}

TEST(Metrics, ReadByAStrictReader) {
  ModelMetrics m, other;
  HttpCounters http;
  for (const double seconds : {0.0005, 0.003, 0.003, 1000.0}) m.first_token.observe(seconds);
  m.finished["stop"] = 2, m.finished["abort"] = 1;
  other.finished["stop"] = 7;
  http.responses[200] = 3;
  const EngineStats e{.running = 2,
                      .waiting = 5,
                      .blocks = 8,
                      .used_blocks = 2,
                      .cache_bytes = 4096,
                      .cache = "fp8"};
  const std::vector<ModelReport> models{{"a \"model\\\n", e, &m}, {"b", {.running = 9}, &other}};
  const ServerReport report{.models = models, .http = &http, .body_bytes = 11};
  const Prometheus p(metrics_text(report));
  EXPECT_EQ(p.value("vllm:num_requests_running", "model_name=\"b\""), 9);
  EXPECT_EQ(p.value("vllm:request_success_total", "model_name=\"b\""), 7);
  EXPECT_EQ(p.value("vllm:time_to_first_token_seconds_count", "model_name=\"b\""), 0);
  EXPECT_EQ(p.value("hearth:http_responses_total", "status=\"200\""), 3);
  EXPECT_EQ(p.value("hearth:pending_body_bytes"), 11);
  EXPECT_EQ(p.value("vllm:num_requests_running"), 2);
  EXPECT_EQ(p.value("vllm:num_requests_waiting"), 5);
  EXPECT_EQ(p.value("vllm:kv_cache_usage_perc"), 0.25);
  EXPECT_EQ(p.value("vllm:cache_config_info", "cache_dtype=\"fp8\",num_gpu_blocks=\"8\""), 1);
  EXPECT_EQ(p.value("hearth:kv_cache_bytes"), 4096);
  EXPECT_EQ(p.value("vllm:request_success_total", "finished_reason=\"stop\""), 2);
  EXPECT_EQ(p.value("vllm:time_to_first_token_seconds_count"), 4);
  EXPECT_EQ(p.value("vllm:time_to_first_token_seconds_bucket", "le=\"0.005\""), 3);
  EXPECT_EQ(p.value("vllm:time_to_first_token_seconds_bucket", "le=\"60\""), 3);
  EXPECT_EQ(p.value("vllm:inter_token_latency_seconds_count"), 0);
  EXPECT_GT(p.value("process_resident_memory_bytes"), 1e6);
}

TEST(Metrics, SensorsAreThereIfTheDeviceHasThem) {
  const HttpCounters http;
  ServerReport report{.http = &http};
  EXPECT_FALSE(Prometheus(metrics_text(report)).types().contains("hearth:device_watts"));
  report.device =
      DeviceState{.celsius = 51, .watts = 312.5, .utilisation = 0.75, .memory_bytes = 8};
  const Prometheus p(metrics_text(report));
  EXPECT_EQ(p.value("hearth:device_celsius"), 51);
  EXPECT_EQ(p.value("hearth:device_watts"), 312.5);
  EXPECT_EQ(p.value("hearth:device_utilisation"), 0.75);
  EXPECT_EQ(p.value("hearth:device_memory_bytes"), 8);
  EXPECT_EQ(p.types().at("hearth:device_watts"), "gauge");
}

TEST(Metrics, TheReaderIsStrict) {
  const std::string head = "# HELP a b\n# TYPE a counter\n";
  EXPECT_NO_THROW(Prometheus(head + "a{x=\"y\"} 1\n"));
  for (const char* bad : {"a 1", "a x\n", "a -1\n", "b 1\n", "a{x=y} 1\n", "a{x=\"\n\"} 1\n",
                          "a 1\na 1\n", "a{x=\"y\",} 1\n", "1a 1\n", "# TYPE a counter\n"})
    EXPECT_THROW(Prometheus(head + bad), std::exception) << bad;
}

}  // namespace
}  // namespace hearth
