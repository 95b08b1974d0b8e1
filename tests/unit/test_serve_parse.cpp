// Request bodies: what is asked for comes through, what is wrong is named, whatever the bytes.
#include <gtest/gtest.h>

#include <random>

#include "serve/parse.h"

namespace hearth {
namespace {

// The HttpError that `f` throws, or one of status 0.
template <class F>
HttpError error_of(F f) {
  try {
    f();
  } catch (const HttpError& e) { return e; }
  return HttpError(0, "");
}

HttpError completion_error(const std::string& body, const ServeConfig& limits = {}) {
  return error_of([&] { parse_completion_request(body, limits); });
}
HttpError chat_error(const std::string& fields, const ServeConfig& limits = {}) {
  return error_of([&] {
    parse_chat_request(R"({"messages":[{"role":"user","content":"hi"}])" + fields + "}", limits);
  });
}

TEST(ParseCompletion, TakesEveryField) {
  const CompletionCall c = parse_completion_request(
      R"({"model":"m","prompt":"Hi","max_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":40,
          "min_p":0.1,"n":3,"best_of":3,"stream":true,"stream_options":{"include_usage":true},
          "stop":["a","b"],"seed":-5,"logprobs":2,"presence_penalty":1,"frequency_penalty":-1,
          "repetition_penalty":1.1,"logit_bias":{"5":-100,"6":1.5},"user":"u","suffix":null,
          "stop_token_ids":[3],"ignore_eos":true,"min_tokens":2})");
  EXPECT_EQ(c.model, "m");
  ASSERT_EQ(c.prompts.size(), 1u);
  EXPECT_EQ(std::get<std::string>(c.prompts[0]), "Hi");
  EXPECT_EQ(c.max_tokens, 7);
  EXPECT_TRUE(c.stream && c.include_usage && !c.echo && !c.chat);
  EXPECT_EQ(c.request.n, 3);
  EXPECT_EQ(c.seed, uint64_t(-5));
  const SamplingSpec& s = c.request.sampling;
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_p, 0.9f);
  EXPECT_EQ(s.top_k, 40);
  EXPECT_EQ(s.min_p, 0.1f);
  EXPECT_EQ(s.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(s.stop_ids, std::vector<int32_t>{3});
  EXPECT_EQ(s.logprobs, 2);
  EXPECT_EQ(s.min_tokens, 2);
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.logit_bias, (std::map<int32_t, float>{{5, -100.f}, {6, 1.5f}}));
}

// On the one thread that serves everybody: a name of any length costs what a short one does.
TEST(ParseCompletion, AnswersAHugeNameShortly) {
  const HttpError e =
      completion_error("{\"prompt\":\"x\",\"" + std::string((4 << 20) - 100, 'k') + "\":1}");
  EXPECT_EQ(e.status, 400);
  EXPECT_EQ(e.param, std::string(64, 'k'));
  EXPECT_LT(std::string(e.what()).size(), 300u) << e.what();
}

// An unknown field names a known one only if that is likely to be meant, and vLLM's older fields of
// constraints name what this server takes in their place.
TEST(ParseCompletion, SuggestsFieldsThatAreMeant) {
  const auto said = [](const std::string& field) {
    const HttpError chat = chat_error("," + field);
    const HttpError e = completion_error(R"({"prompt":"x",)" + field + "}");
    EXPECT_EQ(e.status, 400) << field;
    EXPECT_EQ(std::string(chat.what()), e.what());
    return std::string(e.what());
  };
  EXPECT_EQ(said(R"("temprature":1)"),
            "[temprature] expected a known field, got \"temprature\"; did you mean temperature?");
  EXPECT_EQ(said(R"("mirostat_learning":1)"),
            "[mirostat_learning] expected a known field, got \"mirostat_learning\"");
  EXPECT_EQ(said(R"("guided_json":{"type":"object"})"),
            "[guided_json] this server takes response_format or structured_outputs "
            "{\"json\": ..} instead of guided_json");
  EXPECT_EQ(said(R"("guided_regex":"a+")"),
            "[guided_regex] this server takes structured_outputs {\"regex\": ..} instead of "
            "guided_regex");
  EXPECT_EQ(said(R"("guided_choice":["a"])"),
            "[guided_choice] this server takes structured_outputs {\"choice\": [..]} instead of "
            "guided_choice");
  EXPECT_EQ(said(R"("guided_grammar":"root ::= x")"),
            "[guided_grammar] this server takes structured_outputs with json, regex or choice "
            "instead of guided_grammar");
  EXPECT_EQ(completion_error(R"({"prompt":"x","guided_json":null})").status, 0);
}

TEST(ParseCompletion, ABodyForTheOtherRouteNamesThatRoute) {
  const std::string prompt = R"("prompt":"x")", messages = R"("messages":[{"role":"user"}])";
  for (const std::string& body : {"{" + messages + "}", "{" + prompt + "," + messages + "}"}) {
    const HttpError e = completion_error(body);
    EXPECT_EQ(e.status, 400);
    EXPECT_STREQ(e.what(),
                 "[messages] messages belong to /v1/chat/completions; this route takes prompt");
  }
  for (const std::string& body : {"{" + prompt + "}", "{" + prompt + "," + messages + "}"}) {
    const HttpError e = error_of([&] { parse_chat_request(body); });
    EXPECT_EQ(e.status, 400);
    EXPECT_STREQ(e.what(), "[prompt] prompt belongs to /v1/completions; this route takes messages");
  }
  EXPECT_STREQ(error_of([] { parse_chat_request("{}"); }).what(),
               "[messages] expected a list of at least one message, got none");
}

// What the model's generation_config.json says, where the request says nothing.
TEST(ParseCompletion, DefaultsOfTheModelComeFirst) {
  SamplingSpec d;
  d.temperature = 0.6f, d.top_k = 20, d.top_p = 0.9f, d.min_p = 0.1f, d.repetition_penalty = 1.2f;
  d.max_tokens = 40;
  const DefaultsOf defaults = [&](const std::string& model) {
    EXPECT_EQ(model, "");
    return d;
  };
  const auto parsed = [&](const std::string& fields) {
    return parse_chat_request(R"({"messages":[{"role":"user","content":"x"}])" + fields + "}", {},
                              defaults);
  };
  const SamplingSpec s = parsed("").request.sampling;
  EXPECT_EQ(s.temperature, 0.6f);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_EQ(s.top_p, 0.9f);
  EXPECT_EQ(s.min_p, 0.1f);
  EXPECT_EQ(s.repetition_penalty, 1.2f);
  EXPECT_FALSE(parsed("").max_tokens);
  const SamplingSpec own =
      parsed(R"(,"temperature":1,"top_k":-1,"top_p":1,"min_p":0,"repetition_penalty":1)")
          .request.sampling;
  EXPECT_EQ(own.temperature, 1);
  EXPECT_EQ(own.top_k, 0);
  EXPECT_EQ(own.top_p, 1);
  EXPECT_EQ(own.min_p, 0);
  EXPECT_EQ(own.repetition_penalty, 1);
  const CompletionCall c = parse_completion_request(R"({"prompt":"x"})", {}, defaults);
  EXPECT_EQ(c.request.sampling.top_k, 20);
  EXPECT_FALSE(c.max_tokens);
  EXPECT_EQ(c.request.sampling.max_tokens, 16);  // OpenAI's
}

TEST(ParseCompletion, DefaultsAreOpenAis) {
  const CompletionCall c = parse_completion_request(R"({"prompt":"x","temperature":null})");
  EXPECT_FALSE(c.max_tokens);
  EXPECT_EQ(c.request.sampling.max_tokens, 16);
  EXPECT_EQ(c.request.sampling.temperature, 1);
  EXPECT_FALSE(c.seed || c.stream || c.logprobs());
  EXPECT_EQ(std::get<std::string>(parse_completion_request("{}").prompts.at(0)), "");
}

TEST(ParseCompletion, TakesEveryKindOfPrompt) {
  const auto prompts = [](const std::string& p) {
    return parse_completion_request("{\"prompt\":" + p + "}").prompts;
  };
  EXPECT_EQ(prompts(R"(["a","b"])").size(), 2u);
  EXPECT_EQ(std::get<Tokens>(prompts("[1,2,3]").at(0)), (Tokens{1, 2, 3}));
  EXPECT_EQ(std::get<Tokens>(prompts("[[1],[2,3]]").at(1)), (Tokens{2, 3}));
  for (const char* bad : {"[]", "7", "{}", "true", R"(["a",[1]])", R"([1,"a"])", "[[1],2]", "[-1]",
                          "[2147483648]", "[1.5]", "[18446744073709551615]", "[[\"a\"]]"})
    EXPECT_EQ(completion_error("{\"prompt\":" + std::string(bad) + "}").param, "prompt") << bad;
}

TEST(ParseCompletion, ScoringAsLmEvaluationHarnessAsks) {
  const CompletionCall c = parse_completion_request(
      R"({"model":"m","prompt":[[5,6,7]],"temperature":0,"max_tokens":1,"logprobs":1,"seed":1234,
          "echo":true})");
  EXPECT_TRUE(c.echo && c.request.prompt_logprobs);
  EXPECT_EQ(c.request.sampling.logprobs, 1);
}

TEST(ParseCompletion, RangesAreChecked) {
  const std::vector<std::pair<std::string, std::string>> bad{
      {"max_tokens", "-1"},
      {"max_tokens", "65537"},
      {"max_tokens", "1e3"},
      {"max_tokens", "99999999999999999999"},
      {"max_tokens", "\"5\""},
      {"n", "0"},
      {"n", "129"},
      {"n", "true"},
      {"temperature", "-0.1"},
      {"temperature", "2.1"},
      {"temperature", "\"1\""},
      {"top_p", "1.01"},
      {"top_k", "-2"},
      {"presence_penalty", "3"},
      {"frequency_penalty", "-3"},
      {"repetition_penalty", "0"},
      {"seed", "9223372036854775808"},
      {"logprobs", "21"},
      {"logprobs", "-1"},
      {"stop", "[1]"},
      {"stop", "\"\""},
      {"stop", "{}"},
      {"stream", "1"},
      {"echo", "\"yes\""},
      {"logit_bias", "{\"a\":1}"},
      {"logit_bias", "{\"-1\":1}"},
      {"logit_bias", "{\"1\":101}"},
      {"logit_bias", "[1]"},
      {"best_of", "2"},
      {"suffix", "\"x\""},
      {"model", "5"},
      {"stop_token_ids", "[-1]"},
      {"min_tokens", "65537"},
      {"stream_options", "{\"include_usage\":true}"}};
  for (const auto& [field, value] : bad) {
    const HttpError e = completion_error("{\"prompt\":\"x\",\"" + field + "\":" + value + "}");
    EXPECT_EQ(e.status, 400) << field << " " << value;
    EXPECT_EQ(e.param, field) << value << ": " << e.what();
    EXPECT_NE(std::string(e.what()).find("[" + field + "] "), std::string::npos) << e.what();
  }
}

// A field that is not supported is an error only if it asks for something.
TEST(ParseCompletion, EmptyFieldsAskForNothing) {
  parse_completion_request(R"({"prompt":"x","suffix":""})");
  parse_chat_request(
      R"({"messages":[{"role":"user","content":"x"}],"reasoning_effort":"","functions":[],"audio":{}})");
  EXPECT_EQ(chat_error(R"(,"reasoning_effort":"low")").param, "reasoning_effort");
}

TEST(ParseChat, TakesAnAnswerToContinue) {
  const auto end_of = [](const std::string& role, const std::string& fields) {
    return parse_chat_request(R"({"messages":[{"role":"user","content":"x"},{"role":")" + role +
                              R"(","content":"On"}])" + fields + "}")
        .end;
  };
  EXPECT_EQ(end_of("assistant", ""), ChatEnd::opening);
  EXPECT_EQ(end_of("assistant", R"(,"add_generation_prompt":false)"), ChatEnd::closed);
  EXPECT_EQ(end_of("assistant", R"(,"continue_final_message":true)"), ChatEnd::unfinished);
  const auto error = [&](const std::string& role, const std::string& fields) {
    return error_of([&] { end_of(role, R"(,"continue_final_message":true)" + fields); }).param;
  };
  EXPECT_EQ(error("user", ""), "continue_final_message");
  EXPECT_EQ(error("assistant", R"(,"add_generation_prompt":true)"), "continue_final_message");
}

TEST(ParseCompletion, KeepsTheLimits) {
  EXPECT_EQ(completion_error(R"({"n":4,"max_tokens":30})", {.max_new_tokens = 100}).param,
            "max_tokens");
  EXPECT_EQ(completion_error(R"({"n":4,"max_tokens":25})", {.max_new_tokens = 100}).status, 0);
  EXPECT_EQ(completion_error(R"({"prompt":["a","b"],"n":3})", {.max_choices = 5}).param, "n");
  EXPECT_EQ(completion_error(R"({"n":5})", {.batch = 2, .queue = 2}).param, "n");
  EXPECT_EQ(completion_error(R"({"stop":["a","b"]})", {.max_stop_strings = 1}).param, "stop");
  EXPECT_EQ(completion_error(R"({"stop":"abc"})", {.max_stop_bytes = 2}).param, "stop");
  EXPECT_EQ(completion_error(R"({"max_tokens":16,"min_tokens":17})").param, "min_tokens");
  EXPECT_EQ(completion_error(R"({"min_tokens":17})").status, 0) << "the default grows with it";
  // Each prompt copies the biases.
  std::string biases;
  for (int i = 0; i < 70000; ++i) biases += (i ? ",\"" : "\"") + std::to_string(i) + "\":1";
  EXPECT_EQ(completion_error(R"({"n":3,"logit_bias":{)" + biases + "}}").status, 0);
  EXPECT_EQ(completion_error(R"({"n":4,"logit_bias":{)" + biases + "}}").param, "logit_bias");
  EXPECT_EQ(completion_error(R"({"logprobs":3})", {.max_logprobs = 2}).param, "logprobs");
  EXPECT_EQ(completion_error(R"({"stream":true,"echo":true,"logprobs":1})").param, "stream");
  const std::string deep = "{\"prompt\":" + std::string(40, '[') + std::string(40, ']') + "}";
  EXPECT_EQ(completion_error(deep).code, "invalid_json");
  EXPECT_EQ(completion_error(deep, {.max_json_depth = 50}).param, "prompt");
}

TEST(ParseCompletion, UnknownFieldsAreNamedWithTheNearest) {
  const HttpError e = completion_error(R"({"prompt":"x","max_token":5})");
  EXPECT_EQ(e.param, "max_token");
  EXPECT_NE(std::string(e.what()).find("max_tokens"), std::string::npos);
  for (const char* body : {"", "{", "[]", "null", "\"x\"", "{\"n\":1,\"n\":2}", "{}x", "\xff"})
    EXPECT_EQ(completion_error(body).status, 400) << body;
}

TEST(ParseChat, TakesMessages) {
  const CompletionCall c = parse_chat_request(
      R"({"messages":[{"role":"system","content":"S"},
          {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],
           "name":"N"}],
          "max_completion_tokens":9,"logprobs":true,"top_logprobs":4,"tools":[],
          "response_format":{"type":"text"},"chat_template_kwargs":{"enable_thinking":false}})");
  EXPECT_TRUE(c.chat);
  EXPECT_EQ(c.messages[1]["content"], "ab");
  EXPECT_EQ(c.messages[1]["name"], "N");
  EXPECT_EQ(c.max_tokens, 9);
  EXPECT_EQ(c.request.sampling.logprobs, 4);
  EXPECT_EQ(c.variables["enable_thinking"], false);
  EXPECT_FALSE(parse_chat_request(R"({"messages":[{"role":"user","content":""}]})").max_tokens);
}

TEST(ParseChat, RefusesWhatItHasNot) {
  const HttpError e = chat_error(R"(,"functions":[{"type":"function"}])");
  EXPECT_EQ(e.status, 400);
  EXPECT_EQ(e.param, "functions");
  EXPECT_NE(std::string(e.what()).find("this server does not support"), std::string::npos);
  EXPECT_EQ(chat_error(R"(,"tool_choice":"auto")").param, "tool_choice");
  const std::string tool = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  for (const auto& [fields, param] : std::vector<std::pair<std::string, std::string>>{
           {R"(,"tools":5)", "tools"},
           {R"(,"tools":[{}])", "tools[0].type"},
           {R"(,"tools":[{"type":"function"}])", "tools[0].function"},
           {R"(,"tools":[{"type":"function","function":{"name":"a b"}}])",
            "tools[0].function.name"},
           {tool + R"(,"tool_choice":"some")", "tool_choice"},
           {tool + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})",
            "tool_choice.function.name"},
           {tool + R"(,"response_format":{"type":"json_object"})", "tools"},
           {R"(,"response_format":{"type":"xml"})", "response_format.type"},
           {R"(,"response_format":{"type":"json_schema"})", "response_format.json_schema"},
           {R"(,"response_format":{"type":"json_schema","json_schema":{"name":"n"}})",
            "response_format.json_schema.schema"},
           {R"(,"structured_outputs":{})", "structured_outputs"},
           {R"(,"structured_outputs":{"regex":"a","json":{}})", "structured_outputs"},
           {R"(,"structured_outputs":{"grammar":"a"})", "structured_outputs.grammar"},
           {R"(,"structured_outputs":{"choice":[]})", "structured_outputs.choice"},
           {R"(,"structured_outputs":{"regex":"a"},"response_format":{"type":"json_object"})",
            "structured_outputs"}})
    EXPECT_EQ(chat_error(fields).param, param) << fields;
  EXPECT_EQ(chat_error(R"(,"top_logprobs":1)").param, "top_logprobs");
  EXPECT_EQ(chat_error(R"(,"max_tokens":0)").param, "max_tokens");
  EXPECT_EQ(chat_error(R"(,"echo":true)").param, "echo");
  for (const char* messages :
       {"[]", "{}", "[1]", R"([{"content":"x"}])", R"([{"role":"user"}])",
        R"([{"role":"user","content":5}])", R"([{"role":"user","content":"","tool_calls":[{}]}])",
        R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}])",
        R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])",
        R"([{"role":"user","content":"x","other":1}])",
        R"([{"role":"assistant","content":"x","tool_calls":[{}]}])"})
    EXPECT_EQ(error_of([&] {
                parse_chat_request("{\"messages\":" + std::string(messages) + "}");
              }).status,
              400)
        << messages;
}

TEST(ParseChat, TakesTheDefaultsOfOpenAisOptionalFields) {
  const auto parse = [](const char* more) {
    return parse_chat_request(
        fmt::format(R"({{"messages":[{{"role":"user","content":"x"}}],{}}})", more));
  };
  EXPECT_NO_THROW(parse(R"("modalities":["text"])"));
  EXPECT_EQ(error_of([&] { parse(R"("modalities":["text","audio"])"); }).param, "modalities");
  EXPECT_TRUE(parse(R"("seed":1)").tools.parallel);
  EXPECT_FALSE(parse(R"("parallel_tool_calls":false)").tools.parallel);
  EXPECT_EQ(error_of([&] { parse(R"("parallel_tool_calls":1)"); }).param, "parallel_tool_calls");
}

TEST(ParseTokenize, TakesOneOfTwo) {
  EXPECT_EQ(parse_tokenize_request(R"({"prompt":"x","add_special_tokens":false})").prompt, "x");
  EXPECT_FALSE(parse_tokenize_request(R"({"prompt":"x","add_special_tokens":false})").text.around);
  EXPECT_TRUE(parse_tokenize_request(R"({"prompt":"x"})").text.around);
  EXPECT_FALSE(
      parse_tokenize_request(R"({"messages":[{"role":"user","content":"x"}]})").messages.empty());
  EXPECT_EQ(error_of([] { parse_tokenize_request("{}"); }).status, 400);
  EXPECT_EQ(parse_detokenize_request(R"({"tokens":[1,2]})").tokens, (Tokens{1, 2}));
  EXPECT_EQ(error_of([] { parse_detokenize_request(R"({"tokens":[-1]})"); }).param, "tokens");
  EXPECT_EQ(error_of([] { parse_detokenize_request(R"({"tokens":"x"})"); }).param, "tokens");
}

// Good bodies with bytes changed, cut or doubled: a result or an HttpError, nothing else.
TEST(Parse, TakesAnyBytes) {
  const std::vector<std::string> seeds{
      R"({"model":"m","prompt":[[1,2],[3]],"max_tokens":7,"stop":["a"],"logit_bias":{"1":2}})",
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"n":2,"seed":1})",
      R"({"tokens":[1,2,3],"model":null})"};
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string body = seeds[random() % seeds.size()];
    for (uint32_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % (body.size() + 1);
      if (random() % 3 == 0)
        body.insert(at, 1, char(random()));
      else if (random() % 2 && at < body.size())
        body[at] = "{}[]\",:0-9etfn\\"[random() % 15];
      else
        body.erase(at, random() % 5);
    }
    const auto attempt = [&](auto parse) {
      refused += error_of([&] { parse(body, ServeConfig()); }).status == 400;
    };
    attempt([](auto... a) { parse_completion_request(a...); });
    attempt([](auto... a) { parse_chat_request(a...); });
    attempt(parse_tokenize_request);
    attempt(parse_detokenize_request);
  }
  EXPECT_GT(refused, 40000);
}

}  // namespace
}  // namespace hearth
