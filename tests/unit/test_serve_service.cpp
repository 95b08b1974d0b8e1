// What the routes answer: texts, scores, streams, chats, tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "model/decoder.h"
#include "model/files/adapter.h"
#include "serving.h"

namespace hearth {
namespace {

using nlohmann::json;

TEST_F(Serving, ScoresAsTheEngineDoes) {
  open();
  const json j = answer("/v1/completions",
                        R"({"prompt":[[65,66,67],[68]],"max_tokens":1,"logprobs":1,"echo":true,
                            "temperature":0})");
  ASSERT_EQ(j["choices"].size(), 2u);
  Request r{.prompt = {65, 66, 67}, .prompt_logprobs = true};
  r.sampling.temperature = 0, r.sampling.max_tokens = 1, r.sampling.logprobs = 1;
  const Completion want = model_->engine().run(std::vector{r})[0][0];
  const json l = j["choices"][0]["logprobs"];
  ASSERT_EQ(l["tokens"].size(), 4u);
  EXPECT_TRUE(l["token_logprobs"][0].is_null());
  EXPECT_EQ(l["token_logprobs"][1].get<float>(), want.prompt_logprobs[0].logprob);
  EXPECT_EQ(l["token_logprobs"][3].get<float>(), want.logprobs[0].logprob);
  // Greedy: the last token is the likeliest, and prints the same in both places.
  const std::string token = l["tokens"][3];
  EXPECT_EQ(l["top_logprobs"][3][token].dump(), l["token_logprobs"][3].dump());
  EXPECT_EQ(j["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(j["usage"]["completion_tokens"], 2);
}

TEST_F(Serving, StreamsWhatItWouldAnswer) {
  open();
  for (const std::string fields : {R"("prompt":"abc","max_tokens":20,"seed":3,"n":2)",
                                   R"("prompt":["a","b"],"max_tokens":9,"seed":4,"echo":true)",
                                   R"("prompt":"q","max_tokens":40,"seed":5,"logprobs":2)",
                                   R"("prompt":"abc","max_tokens":0,"echo":true)"}) {
    SCOPED_TRACE(fields);
    const json whole = answer("/v1/completions", "{" + fields + "}");
    const auto client =
        ask("/v1/completions",
            "{" + fields + R"(,"stream":true,"stream_options":{"include_usage":true}})");
    ASSERT_TRUE(client->streams);
    ASSERT_GE(client->events.size(), 3u);
    EXPECT_EQ(client->events.back(), "[DONE]");
    client->events.pop_back();
    std::map<int, std::string> texts, ends;
    std::map<int, json> logprobs, offsets;
    for (const std::string& e : client->events) {
      const json j = json::parse(e);
      if (j["choices"].empty()) continue;
      const json& c = j["choices"][0];
      texts[c["index"]] += c["text"];
      if (!c["finish_reason"].is_null()) ends[c["index"]] = c["finish_reason"];
      if (c["logprobs"].is_null()) continue;
      for (const json& t : c["logprobs"]["tokens"]) logprobs[c["index"]].push_back(t);
      for (const json& o : c["logprobs"]["text_offset"]) offsets[c["index"]].push_back(o);
    }
    ASSERT_FALSE(whole["choices"].empty());
    for (const json& c : whole["choices"]) {
      EXPECT_EQ(json(texts[c["index"]]), c["text"]);
      EXPECT_EQ(json(ends[c["index"]]), c["finish_reason"]);
      if (c["logprobs"].is_null()) continue;
      EXPECT_EQ(logprobs[c["index"]], c["logprobs"]["tokens"]);
      EXPECT_EQ(offsets[c["index"]], c["logprobs"]["text_offset"]);
    }
    EXPECT_EQ(json::parse(client->events.back())["usage"], whole["usage"]);
  }
}

TEST_F(Serving, EqualPromptsOfARequestAreSampledApart) {
  open();
  const auto texts = [&](const std::string& seed) {
    const json j = answer("/v1/completions", R"({"prompt":["abc","abc","abc"],"max_tokens":30,
                                                 "ignore_eos":true)" +
                                                 seed + "}");
    return std::set<std::string>{j["choices"][0]["text"], j["choices"][1]["text"],
                                 j["choices"][2]["text"]};
  };
  EXPECT_EQ(texts("").size(), 3u);
  EXPECT_EQ(texts(R"(,"seed":7)").size(), 1u) << "a seed is that of each prompt";
  EXPECT_EQ(texts(R"(,"seed":-1)").size(), 3u) << "none, as for other servers";
}

TEST_F(Serving, NamesTheFieldThatTheEngineRefuses) {
  open();
  const auto field = [&](const char* fields) {
    const HttpError e = error("/v1/completions", std::string(R"({"prompt":"a",)") + fields + "}");
    EXPECT_EQ(e.status, 400) << e.what();
    return e.param;
  };
  EXPECT_EQ(field(R"("logit_bias":{"99999":1})"), "logit_bias");
  EXPECT_EQ(field(R"("stop_token_ids":[99999])"), "stop_token_ids");
  EXPECT_EQ(
      answer("/v1/completions",
             R"({"prompt":"a","min_tokens":20,"ignore_eos":true})")["usage"]["completion_tokens"],
      20)
      << "more than the default length";
}

// An adapter's folder may have a tokenizer and no generation_config.json.
TEST_F(Serving, ChatsOfAnAdapterEndAsThoseOfItsBase) {
  const std::filesystem::path base = dir_ / "base", adapter = dir_ / "adapter";
  write_served_folder(base);
  write_file_atomic(base / "generation_config.json",
                    json{{"eos_token_id", {served_eos, 65}}}.dump());
  ModelConfig c = ModelSource::open(base).config();
  c.lora.rank = 2, c.lora.alpha = 4;
  const auto backend = make_cpu_backend(1);
  ParamStore params(*backend, decoder_params(c), DType::f32);
  params.initialise(1);
  make_dirs(adapter);
  write_adapter(adapter, c, params, base.string());
  served_tokenizer().save(adapter);
  write_file_atomic(adapter / "chat_template.jinja", served_template());
  SamplingSpec s;
  ChatPrompt(ModelSource::open(base, adapter), served_tokenizer()).add_stops(s);
  EXPECT_NE(std::ranges::find(s.stop_ids, 65), s.stop_ids.end());
}

TEST_F(Serving, SamplesAsTheModelsDefaultsSay) {
  open();
  SamplingSpec d;
  d.temperature = 0, d.max_tokens = 6;
  model_->set_defaults(d);
  const auto chat = [&](const std::string& fields) {
    return answer(
        "/v1/chat/completions",
        R"({"messages":[{"role":"user","content":"hi"}],"ignore_eos":true)" + fields + "}");
  };
  const json j = chat("");
  EXPECT_EQ(j["usage"]["completion_tokens"], 6);
  EXPECT_EQ(j["choices"][0]["finish_reason"], "length");
  // Greedy: no seed matters.
  EXPECT_EQ(chat(R"(,"seed":1)")["choices"], chat(R"(,"seed":2)")["choices"]);
  EXPECT_NE(chat(R"(,"seed":1,"temperature":2)")["choices"],
            chat(R"(,"seed":2,"temperature":2)")["choices"]);
  EXPECT_EQ(chat(R"(,"max_tokens":9)")["usage"]["completion_tokens"], 9);
  EXPECT_EQ(chat(R"(,"min_tokens":8)")["usage"]["completion_tokens"], 8);
  // A default larger than the room is cut to it, where a request for as much would be refused.
  d.max_tokens = 100000;
  model_->set_defaults(d);
  const json all = chat("");
  EXPECT_EQ(all["usage"]["total_tokens"], served_context);
}

TEST_F(Serving, EndsTextsAsTheModelsConfigSays) {
  open();
  const auto greedy = [&](const std::string& more) {
    return answer("/v1/completions",
                  R"({"prompt":"abc","max_tokens":20,"temperature":0)" + more + "}");
  };
  const json whole = greedy(R"(,"ignore_eos":true)");
  const std::string text = whole["choices"][0]["text"];
  const int end = uint8_t(text.at(4));
  write_file_atomic(dir_ / "generation_config.json",
                    json{{"eos_token_id", {served_eos, end}}}.dump());
  serve({});
  const json cut = greedy("");
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "stop");
  EXPECT_LT(std::string(cut["choices"][0]["text"]).size(), 5u);
  EXPECT_EQ(greedy(R"(,"ignore_eos":true)")["choices"][0]["text"], text);
}

TEST_F(Serving, ChatsByTemplateAndWithout) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"hi<|end|>"}],"max_tokens":5,"seed":1})";
  open();
  const json j = answer("/v1/chat/completions", body);
  EXPECT_EQ(j["choices"][0]["message"]["role"], "assistant");
  // <|user|>, nine bytes that are no special token, <|end|>, <|assistant|>
  EXPECT_EQ(j["usage"]["prompt_tokens"], 1 + 9 + 1 + 1);
  const auto client =
      ask("/v1/chat/completions", body.substr(0, body.size() - 1) + ",\"stream\":true}");
  std::string text;
  for (const std::string& e : client->events)
    if (e != "[DONE]") text += json::parse(e)["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(json(text), j["choices"][0]["message"]["content"]);

  std::filesystem::remove(dir_ / "chat_template.jinja");
  open({}, false);
  EXPECT_FALSE(model_->chat().has_template());
  EXPECT_EQ(answer("/v1/chat/completions", body)["usage"]["prompt_tokens"],
            int(std::string("User: hi<|end|>\nAssistant:").size()));
}

TEST_F(Serving, Tokenizes) {
  open();
  const json ids = answer("/tokenize", R"({"model":"m","prompt":"ab<|end|>"})");
  EXPECT_EQ(ids["count"], 9);
  EXPECT_EQ(ids["max_model_len"], served_context);
  EXPECT_EQ(answer("/tokenize", R"({"prompt":"<|end|>"})")["tokens"], json{served_eos});
  EXPECT_EQ(answer("/tokenize", R"({"prompt":"a<|end|>","parse_special":true})")["tokens"],
            (json{97, 256}));
  EXPECT_EQ(answer("/tokenize", R"({"messages":[{"role":"user","content":"a"}]})")["tokens"],
            (json{257, 97, 256, 258}));
  EXPECT_EQ(answer("/tokenize", R"({"prompt":"<|end|>","parse_special":false})")["count"], 7);
  const json prompt = answer("/v1/completions", R"({"prompt":"a<|end|>","max_tokens":1})");
  EXPECT_EQ(prompt["usage"]["prompt_tokens"], 8);
  const json special =
      answer("/v1/completions", R"({"prompt":"a<|end|>","max_tokens":1,"parse_special":true})");
  EXPECT_EQ(special["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(answer("/detokenize", R"({"tokens":[97,98]})")["prompt"], "ab");
  EXPECT_EQ(error("/detokenize", R"({"tokens":[99999]})").status, 400);
  const json info = answer("/tokenizer_info");
  EXPECT_EQ(info["eos_token"], "<|end|>");
  EXPECT_EQ(info["chat_template"], served_template());
  EXPECT_EQ(answer("/v1/models")["data"][0]["id"], "m");
  EXPECT_EQ(answer("/v1/models/m")["object"], "model");
}

// Puts special tokens around every text: {"A"} stands for the text.
void set_template(const std::filesystem::path& tokenizer, const std::vector<std::string>& items) {
  json single = json::array(), special = json::object();
  for (const std::string& id : items) {
    single.push_back({{id == "A" ? "Sequence" : "SpecialToken", {{"id", id}, {"type_id", 0}}}});
    if (id == "A") continue;
    special[id] = {{"id", id},
                   {"ids", json::array({*served_tokenizer().special(id)})},
                   {"tokens", json::array({id})}};
  }
  json j = json::parse(read_file(tokenizer));
  j["post_processor"] = {{"type", "TemplateProcessing"},
                         {"single", single},
                         {"pair", json::array()},
                         {"special_tokens", special}};
  write_file_atomic(tokenizer, j.dump());
}

// A client that renders a chat template sends its bos too.
TEST_F(Serving, APromptWithItsBosGetsNoOther) {
  open();
  const auto ids = [&](const std::string& fields) {
    return answer("/tokenize", "{" + fields + R"(,"parse_special":true})")["tokens"];
  };
  set_template(dir_ / "tokenizer.json", {"<|end|>", "A"});
  serve({});
  EXPECT_EQ(ids(R"("prompt":"a")"), (json{256, 97}));
  EXPECT_EQ(ids(R"("prompt":"<|end|>a")"), (json{256, 97}));
  EXPECT_EQ(ids(R"("prompt":"a","add_special_tokens":false)"), json{97});

  set_template(dir_ / "tokenizer.json", {"<|user|>", "A"});
  serve({});
  EXPECT_EQ(answer("/tokenize", R"({"prompt":"<|end|>"})")["tokens"], json{256});
  EXPECT_EQ(ids(R"("prompt":"<|end|>")"), (json{257, 256})) << "a prompt, not the name of a token";
}

TEST_F(Serving, APromptGetsTheEndOfTheTemplateWhateverItBeginsWith) {
  open();
  const auto ids = [&](const std::string& prompt) {
    return answer("/tokenize",
                  json({{"prompt", prompt}, {"parse_special", true}}).dump())["tokens"];
  };
  set_template(dir_ / "tokenizer.json", {"A", "<|end|>"});
  serve({});
  EXPECT_EQ(ids("<|end|>a"), (json{256, 97, 256}));
  set_template(dir_ / "tokenizer.json", {"<|user|>", "A", "<|end|>"});
  serve({});
  EXPECT_EQ(ids("<|user|>a"), (json{257, 97, 256}));
  EXPECT_EQ(ids("a"), (json{257, 97, 256}));
}

TEST_F(Serving, TokenizesChatsAsTheyAreAnswered) {
  open();
  write_file_atomic(dir_ / "chat_template.jinja",
                    "{% if messages|length > 1 %}{{ raise_exception('one message') }}{% endif %}"
                    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
                    "{{ messages[0].content }}{% if big %}!{% endif %}{# <tool_call> #}");
  serve({});
  const std::string one = R"({"messages":[{"role":"user","content":"a"}])";
  EXPECT_EQ(answer("/tokenize", one + "}")["tokens"], json{97});
  EXPECT_EQ(answer("/tokenize", one + R"(,"chat_template_kwargs":{"big":true}})")["tokens"],
            (json{97, 33}));
  EXPECT_EQ(answer("/tokenize",
                   one + R"(,"tools":[{"type":"function","function":{"name":"f"}}]})")["tokens"],
            (json{102, 97}));
  const HttpError e = error("/tokenize", R"({"messages":[{"role":"user","content":"a"},
                                                         {"role":"user","content":"b"}]})");
  EXPECT_EQ(e.status, 400);
  EXPECT_EQ(e.param, "messages");
}

TEST_F(Serving, SeveralModelsAnswerByName) {
  open();
  serve({.batch = 2, .queue = 0}, {"m", "group/b"});
  const json list = answer("/v1/models")["data"];
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[1]["id"], "group/b");
  for (const char* path : {"/v1/models/group/b", "/v1/models/group%2Fb"})
    EXPECT_EQ(answer(path)["id"], "group/b");
  SamplingSpec d;
  d.temperature = 0;
  models_[1].model->set_defaults(d);  // the defaults are those of the model that is asked
  const auto text = [&](const std::string& fields) {
    return answer("/v1/completions",
                  R"({"prompt":"abc","max_tokens":8,"ignore_eos":true)" + fields + "}");
  };
  EXPECT_EQ(text(R"(,"seed":1,"model":"group/b")")["choices"],
            text(R"(,"seed":2,"model":"group/b")")["choices"]);
  EXPECT_NE(text(R"(,"seed":1,"model":"m")")["choices"],
            text(R"(,"seed":2,"model":"m")")["choices"]);
  EXPECT_EQ(text(R"(,"model":"group/b")")["model"], "group/b");
  EXPECT_EQ(text("")["model"], "m") << "without a name the first one answers";
  const HttpError e = error("/v1/completions", R"({"prompt":"a","model":"c"})");
  EXPECT_EQ(e.status, 404);
  EXPECT_EQ(e.code, "model_not_found");
  EXPECT_STREQ(e.what(), "[model] expected m or group/b, got \"c\"");
  EXPECT_EQ(error("/tokenize", R"({"model":"c","prompt":"a"})").status, 404);
  EXPECT_EQ(error("/detokenize", R"({"model":"c","tokens":[1]})").status, 404);
  EXPECT_EQ(answer("/tokenize", R"({"model":"group/b","prompt":"a"})")["tokens"], json{97});

  const Prometheus p = metrics();
  EXPECT_EQ(p.value("vllm:generation_tokens_total", "model_name=\"m\""), 24);
  EXPECT_EQ(p.value("vllm:generation_tokens_total", "model_name=\"group/b\""), 24);
  EXPECT_EQ(answer("/health")["model"], "m, group/b");
}

TEST_F(Serving, CountsTokensAsTheyAreMade) {
  open();
  for (const bool stream : {false, true}) {
    SCOPED_TRACE(stream);
    const auto counted = [&](const std::string& what) {
      const auto client = std::make_shared<FakeClient>();
      begin("/metrics", "", client);
      return Prometheus(client->response.body).value("vllm:" + what + "_tokens_total");
    };
    const double prompts = counted("prompt"), made = counted("generation");
    const auto client = std::make_shared<FakeClient>();
    begin("/v1/completions",
          std::string(R"({"prompt":["abc","de"],"max_tokens":9,"ignore_eos":true,"n":2)") +
              (stream ? R"(,"stream":true})" : "}"),
          client);
    EXPECT_EQ(counted("prompt"), prompts);
    for (int step = 1; step <= 9; ++step) {
      ASSERT_FALSE(client->done);
      model_->engine().step();
      run_tasks();
      EXPECT_EQ(counted("prompt"), prompts + 5);
      EXPECT_EQ(counted("generation"), made + 4 * step);
    }
    settle();
    ASSERT_TRUE(client->done);
    EXPECT_EQ(counted("prompt"), prompts + 5);
    EXPECT_EQ(counted("generation"), made + 36);
  }
}

TEST_F(Serving, AModelWhoseQueueIsFullDoesNotBlockAnother) {
  open();
  serve({.batch = 2, .queue = 0}, {"a", "b"});
  const std::string rest = R"("prompt":"a","max_tokens":50,"ignore_eos":true,"n":2})";
  const auto first = std::make_shared<FakeClient>(), second = std::make_shared<FakeClient>();
  begin("/v1/completions", R"({"model":"a",)" + rest, first);
  const Route& route = service_->check_head(
      {.method = "POST", .path = "/v1/completions", .content_type = "application/json"});
  EXPECT_NO_THROW(service_->check_queue(route));
  try {
    begin("/v1/completions", R"({"model":"a",)" + rest, second);
    FAIL();
  } catch (const HttpError& e) { EXPECT_EQ(e.status, 429); }
  begin("/v1/completions", R"({"model":"b",)" + rest, second);
  EXPECT_THROW(service_->check_queue(route), HttpError) << "now both are full";
  settle();
  EXPECT_TRUE(first->done && second->done);
  EXPECT_NO_THROW(service_->check_queue(route));
}

TEST_F(Serving, SharesMemoryAmongModels) {
  open();
  serve({}, {"a", "b"});
  std::vector<NamedModel> loaded;
  for (const char* name : {"a", "b"})
    loaded.push_back({name, std::make_unique<ServedModel>(ModelSource::open(dir_.path(), ""),
                                                          *backend_, WeightsSpec{})});
  const EngineSpec spec{.max_batch = 4};
  const int64_t wanted = loaded[0].model->wanted_bytes(spec);
  EngineSpec half = spec;
  const int64_t all_blocks = 2 * 4 * served_context / cache_block;
  half.memory_bytes = 2 * wanted - (512 << 10);  // each lacks 16 blocks
  const std::string plan = start_engines(loaded, *backend_, half);
  EXPECT_NE(plan.find("a "), std::string::npos) << plan;
  const int64_t blocks = loaded[0].model->engine().stats().blocks;
  EXPECT_EQ(loaded[1].model->engine().stats().blocks, blocks);
  EXPECT_EQ(blocks, all_blocks - 16);
  half.memory_bytes = 2 * wanted;
  start_engines(loaded, *backend_, half);
  EXPECT_EQ(loaded[1].model->engine().stats().blocks, all_blocks);
  half.memory_bytes = wanted / 1000;
  try {
    start_engines(loaded, *backend_, half);
    FAIL();
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_TRUE(what.starts_with("[a] this model does not fit beside the others: [engine]"))
        << what;
    EXPECT_EQ(what.find('\n'), what.npos);
  }
}

TEST_F(Serving, SaysWhichModelsCanChat) {
  open();
  EXPECT_EQ(answer("/v1/models")["data"][0]["chat_template"], true);
  EXPECT_EQ(answer("/v1/models/m")["chat_template"], true);
  std::filesystem::remove(dir_ / "chat_template.jinja");
  open({}, false);
  EXPECT_EQ(answer("/v1/models")["data"][0]["chat_template"], false);
}

}  // namespace
}  // namespace hearth
