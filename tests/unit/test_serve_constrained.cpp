// response_format, structured_outputs and tools through the server: whole answers and streams.
#include <gtest/gtest.h>

#include "serving.h"
#include "sys/files/files.h"
#include "unit/schema_cases.h"
#include "unit/strict_tools.h"

namespace hearth {
namespace {

using nlohmann::json;

const std::string schema =
    R"({"type":"object","properties":{"a":{"type":"string","maxLength":4},"n":{"type":"integer",
    "minimum":0,"maximum":99}},"required":["a","n"],"additionalProperties":false})";
const std::string ask_user = R"("messages":[{"role":"user","content":"x"}],"max_tokens":180)";

class ServingTools : public Serving {
 protected:
  void open_with(const char* source) {
    open();
    write_file_atomic(dir_.path() / "chat_template.jinja", source);
    serve({});
  }
  static std::string tools(const std::string& choice) {
    return R"({"tools":[{"type":"function","function":{"name":"f","parameters":)" + schema +
           R"(}},{"type":"function","function":{"name":"now"}}],"tool_choice":)" + choice + "," +
           ask_user;
  }
};

TEST_F(Serving, AnswersMatchTheirSchema) {
  open();
  const std::string format =
      R"("response_format":{"type":"json_schema","json_schema":{"name":"s","strict":true,"schema":)" +
      schema + "}}";
  const SchemaJson want = SchemaJson::parse(schema);
  for (const std::string route : {"/v1/chat/completions", "/v1/completions"}) {
    const bool chat = route != "/v1/completions";
    const std::string head = chat ? ask_user : R"("prompt":"x","max_tokens":180)";
    const std::string body = "{" + head + "," + format + R"(,"n":3,"seed":4,"temperature":1.5)";
    const json whole = answer(route, body + "}");
    ASSERT_EQ(whole["choices"].size(), 3u);
    const auto client = ask(route, body + R"(,"stream":true})");
    std::map<int, std::string> streamed;
    for (const std::string& e : client->events) {
      if (e == "[DONE]") continue;
      const json c = json::parse(e)["choices"][0];
      streamed[c["index"]] += chat ? c["delta"].value("content", "") : std::string(c["text"]);
    }
    for (const json& c : whole["choices"]) {
      const std::string text = chat ? c["message"]["content"] : c["text"];
      EXPECT_EQ(c["finish_reason"], "stop");
      EXPECT_TRUE(SchemaJudge(want).fits(SchemaJson::parse(text))) << text;
      EXPECT_EQ(streamed[c["index"]], text);
    }
  }
  const json object = answer("/v1/chat/completions",
                             "{" + ask_user + R"(,"response_format":{"type":"json_object"}})");
  const std::string text = object["choices"][0]["message"]["content"];
  EXPECT_TRUE(object["choices"][0]["finish_reason"] != "stop" || json::parse(text).is_object());
}

// --- the conversation ---

// The prompt of a conversation in the ids of served_tokenizer(), as text.
class ServingChat : public Serving {
 protected:
  std::string rendered(const std::string& messages, const std::string& fields = "") {
    const json ids = answer("/tokenize", R"({"messages":[)" + messages + "]" + fields + "}");
    return answer("/detokenize", json{{"tokens", ids["tokens"]}}.dump())["prompt"];
  }
  std::string refused(const std::string& role) {
    const HttpError e =
        error("/v1/chat/completions", R"({"messages":[{"role":")" + role + R"(","content":"x"}]})");
    return e.status == 400 ? e.what() : "";
  }
};

TEST_F(ServingChat, GoesOnWithAnAnswer) {
  open();
  const std::string asked = R"({"role":"user","content":"q"})";
  const std::string begun = R"({"role":"assistant","content":"<|user|>On"})";
  EXPECT_EQ(rendered(asked + "," + begun, R"(,"continue_final_message":true)"),
            rendered(asked) + "<|user|>On");
  const json ids = answer("/tokenize", R"({"continue_final_message":true,"messages":[)" + asked +
                                           "," + begun + "]}")["tokens"];
  EXPECT_EQ(ids.size(), size_t(4 + 10));  // what the answer says never becomes a special token
  // The answer that goes on is the rest of the answer in one piece.
  const std::string common = R"("temperature":0,"max_tokens":)";
  const std::string whole =
      answer("/v1/chat/completions", R"({"messages":[)" + asked + "]," + common +
                                         "12}")["choices"][0]["message"]["content"];
  const std::string first = whole.substr(0, 5);
  const json rest =
      answer("/v1/chat/completions",
             R"({"continue_final_message":true,)" + common + R"(7,"messages":[)" + asked + "," +
                 json{{"role", "assistant"}, {"content", first}}.dump() + "]}")["choices"][0];
  EXPECT_EQ(first + std::string(rest["message"]["content"]), whole);
}

TEST_F(ServingChat, GoesOnWithoutATemplate) {
  open({}, false);
  const std::string asked = R"({"role":"user","content":"q"})";
  EXPECT_EQ(rendered(asked + R"(,{"role":"assistant","content":"On"})",
                     R"(,"continue_final_message":true)"),
            "User: q\nAssistant: On");
  EXPECT_EQ(rendered(asked + R"(,{"role":"assistant","content":" On"})",
                     R"(,"continue_final_message":true)"),
            "User: q\nAssistant: On");
}

TEST_F(ServingChat, RefusesRolesThatTheTemplateWouldDrop) {
  open();
  EXPECT_EQ(refused("usr"),
            "[messages[0].role] expected one of system, developer, user, assistant, "
            "tool, got \"usr\"; did you mean user?");
  EXPECT_NE(refused("human").find("did you mean user?"), std::string::npos);
  EXPECT_EQ(refused("user"), "");
  EXPECT_EQ(rendered(R"({"role":"developer","content":"x"})"),
            rendered(R"({"role":"system","content":"x"})"));
  write_file_atomic(dir_.path() / "chat_template.jinja",
                    "{% for m in messages %}{% if m.role == 'ipython' %}<|user|>{% else %}"
                    "<|{{ m.role }}|>{% endif %}{{ m.content }}<|end|>{% endfor %}");
  serve({});
  EXPECT_EQ(refused("ipython"), "");
  EXPECT_NE(refused("python"), "");
}

TEST_F(Serving, StructuredOutputs) {
  open();
  const auto text = [&](const std::string& field) {
    return std::string(
        answer("/v1/completions", R"({"prompt":"x","max_tokens":60,"structured_outputs":{)" +
                                      field + "}}")["choices"][0]["text"]);
  };
  EXPECT_EQ(text(R"("regex":"(ab){3}\\d")").substr(0, 6), "ababab");
  EXPECT_TRUE(
      std::set<std::string>({"red", "green"}).contains(text(R"("choice":["red","green"])")));
  EXPECT_EQ(text(R"("json":{"const":{"k":1}})"), R"({"k":1})");
  const json cut = answer("/v1/completions",
                          R"({"prompt":"x","max_tokens":3,"structured_outputs":{"regex":"a{9}"}})");
  EXPECT_EQ(cut["choices"][0]["text"], "aaa");
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "length");
  for (const auto& [field, part] : std::vector<std::pair<std::string, std::string>>{
           {R"x("regex":"(?=a)")x", "lookahead"},
           {R"("json":{"type":"array","uniqueItems":true})", "uniqueItems"},
           {R"("json":"{")", "structured_outputs"}}) {
    const HttpError e =
        error("/v1/completions", R"({"prompt":"x","structured_outputs":{)" + field + "}}");
    EXPECT_EQ(e.status, 400);
    EXPECT_EQ(e.param, "structured_outputs");
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST_F(ServingTools, RequiredCallsParse) {
  for (const char* source : {hermes_template(), llama_template()}) {
    open_with(source);
    const SchemaJson want = SchemaJson::parse(schema);
    for (const std::string choice :
         {R"("required")", R"({"type":"function","function":{"name":"f"}})"})
      for (int seed = 0; seed < 6; ++seed) {
        const std::string body =
            tools(choice) + R"(,"seed":)" + std::to_string(seed) + R"(,"temperature":1.3)";
        const json c = answer("/v1/chat/completions", body + "}")["choices"][0];
        ASSERT_EQ(c["finish_reason"], "tool_calls") << c;
        EXPECT_TRUE(c["message"]["content"].is_null());
        ASSERT_EQ(c["message"]["tool_calls"].size(), 1u);
        const json call = c["message"]["tool_calls"][0];
        EXPECT_EQ(call["type"], "function");
        const std::string arguments = call["function"]["arguments"];
        if (call["function"]["name"] == "f")
          EXPECT_TRUE(SchemaJudge(want).fits(SchemaJson::parse(arguments)));
        else
          EXPECT_EQ(arguments, "{}");
        EXPECT_TRUE(choice[0] != '{' || call["function"]["name"] == "f");
        // The stream says the same.
        json streamed = json::object();
        std::string written, reason, content;
        const auto client = ask("/v1/chat/completions", body + R"(,"stream":true})");
        for (const std::string& e : client->events) {
          if (e == "[DONE]") continue;
          const json d = json::parse(e)["choices"][0];
          content += d["delta"].value("content", "");
          if (!d["finish_reason"].is_null()) reason = d["finish_reason"];
          for (const json& t : d["delta"].value("tool_calls", json::array())) {
            if (t.contains("id")) streamed = t;
            written += t["function"]["arguments"];
          }
        }
        EXPECT_EQ(streamed["function"]["name"], call["function"]["name"]);
        EXPECT_EQ(written, arguments);
        EXPECT_EQ(reason, "tool_calls");
        EXPECT_EQ(content, "");
      }
  }
}

// A call that max_tokens cuts is a partial call, as in OpenAI's API; its markup is never content.
TEST_F(ServingTools, CutCallsArePartial) {
  for (const char* source : {hermes_template(), llama_template()}) {
    open_with(source);
    const auto limited = [&](int most) {
      std::string body = tools(R"({"type":"function","function":{"name":"f"}})");
      const std::string limit = R"("max_tokens":180)";
      return body.replace(body.find(limit), limit.size(),
                          R"("max_tokens":)" + std::to_string(most)) +
             R"(,"seed":3,"temperature":1.3)";
    };
    const json whole = answer("/v1/chat/completions", limited(180) + "}");
    const int length = whole["usage"]["completion_tokens"];
    std::string longest;
    for (int most = 1; most < length; ++most) {
      const json c = answer("/v1/chat/completions", limited(most) + "}")["choices"][0];
      EXPECT_EQ(c["finish_reason"], "length");
      EXPECT_TRUE(c["message"]["content"].is_null() || c["message"]["content"] == "") << c;
      std::string name, arguments;
      if (c["message"].contains("tool_calls")) {
        name = c["message"]["tool_calls"][0]["function"]["name"];
        arguments = c["message"]["tool_calls"][0]["function"]["arguments"];
        EXPECT_EQ(name, "f");
      }
      // Arguments grow with the limit, to all of them.
      EXPECT_TRUE(arguments.starts_with(longest) || json::accept(arguments))
          << arguments << " after " << longest;
      longest = arguments;
      // A character that is cut may be shown as U+FFFD.
      while (longest.ends_with("\ufffd")) longest.resize(longest.size() - 3);
      std::string streamed_name, streamed_arguments, content, reason;
      const auto client = ask("/v1/chat/completions", limited(most) + R"(,"stream":true})");
      for (const std::string& e : client->events) {
        if (e == "[DONE]") continue;
        const json d = json::parse(e)["choices"][0];
        content += d["delta"].value("content", "");
        if (!d["finish_reason"].is_null()) reason = d["finish_reason"];
        for (const json& t : d["delta"].value("tool_calls", json::array())) {
          streamed_name += t["function"].value("name", "");
          streamed_arguments += t["function"]["arguments"];
        }
      }
      EXPECT_EQ(streamed_name, name);
      EXPECT_EQ(streamed_arguments, arguments);
      EXPECT_EQ(content, "");
      EXPECT_EQ(reason, "length");
    }
    EXPECT_TRUE(longest.starts_with("{")) << longest;
  }
}

TEST_F(ServingTools, AutoNoneAndHistory) {
  open_with(hermes_template());
  EXPECT_EQ(answer("/v1/chat/completions", tools(R"("none")") + "}")["object"], "chat.completion");
  const json c = answer("/v1/chat/completions", tools(R"("auto")") + "}")["choices"][0];
  EXPECT_FALSE(c["message"].contains("tool_calls"));  // a random model writes none
  const std::string history =
      R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":
      [{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},
      {"role":"tool","tool_call_id":"c","content":"3"}],"max_tokens":4})";
  EXPECT_EQ(answer("/v1/chat/completions", history)["choices"].size(), 1u);
  open();  // a template without tools
  for (const std::string& body : {tools(R"("auto")") + "}", history}) {
    const HttpError e = error("/v1/chat/completions", body);
    EXPECT_EQ(e.status, 400);
    EXPECT_NE(std::string(e.what()).find("no chat template with tools"), std::string::npos);
  }
}

TEST(ToolParser, FindsCallsHoweverTheTextIsSplit) {
  struct Case {
    ToolFormat format;
    std::string text, content;
    std::vector<std::string> calls;
  };
  const std::string call = R"({"name": "f", "arguments": {"a": "</tool"}})";
  for (const Case& c : std::vector<Case>{
           {ToolFormat::hermes,
            "Sure.\n<tool_call>\n" + call + "\n</tool_call>",
            "Sure.",
            {R"(f {"a":"</tool"})"}},
           {ToolFormat::hermes,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": "
            "\"\\\"</tool_call>\"}}</tool_call>.",
            ".",
            {R"(f {"a":"\"</tool_call>"})"}},
           {ToolFormat::hermes,
            "<tool_call>{\"name\": \"f}</tool_call><tool_call>{\"name\":\"g\"}</tool_call>",
            "<tool_call>{\"name\": \"f}</tool_call>",
            {"g {}"}},
           {ToolFormat::hermes,
            "<tool_call>" + call + "</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>",
            "",
            {R"(f {"a":"</tool"})", "g {}"}},
           {ToolFormat::hermes, "a < b <tool_cal", "a < b <tool_cal", {}},
           {ToolFormat::hermes,
            "<tool_call>{bad</tool_call> x",
            "<tool_call>{bad</tool_call> x",
            {}},
           {ToolFormat::hermes, "<tool_call>" + call, "", {R"(f {"a":"</tool"})"}},
           {ToolFormat::llama,
            " {\"name\": \"f\", \"parameters\": {\"x\": [1]}}\n",
            "",
            {R"(f {"x":[1]})"}},
           {ToolFormat::llama, "<|python_tag|>{\"name\": \"f\"}", "", {"f {}"}},
           {ToolFormat::llama, "<|python_", "<|python_", {}},
           {ToolFormat::llama, "<|python_tag|>f(1)", "f(1)", {}},
           {ToolFormat::llama, "{\"other\": 1}", "{\"other\": 1}", {}},
           {ToolFormat::llama, "Hello {x}", "Hello {x}", {}},
           {ToolFormat::none, "<tool_call>", "<tool_call>", {}}})
    for (size_t step : {1, 3, 1000}) {
      ToolParser p(c.format);
      std::string content;
      std::vector<std::string> calls;
      const auto add = [&](const ToolParser::Found& f) {
        content += f.content;
        for (const ToolCall& t : f.calls) calls.push_back(t.name + " " + t.arguments);
      };
      for (size_t i = 0; i < c.text.size(); i += step) add(p.push(c.text.substr(i, step)));
      add(p.finish());
      EXPECT_EQ(content, c.content) << c.text;
      EXPECT_EQ(calls, c.calls) << c.text;
    }
}

TEST(ToolParser, KeepsOneCallIfTheRequestWantsNoMore) {
  const std::string two =
      "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"g\"}</tool_call>";
  for (const size_t step : {size_t(1), two.size()}) {
    ToolParser p(ToolFormat::hermes, false, false);
    std::string names;
    for (size_t i = 0; i < two.size(); i += step)
      for (const ToolCall& c : p.push(two.substr(i, step)).calls) names += c.name;
    EXPECT_TRUE(p.finish().calls.empty());
    EXPECT_EQ(names, "f");
  }
}

TEST(ToolParser, ReadsCallsThatAreCut) {
  const auto parsed = [](ToolFormat format, bool required, const std::string& text) {
    ToolParser p(format, required);
    std::string said;
    for (const ToolParser::Found& f : {p.push(text), p.finish(true)}) {
      said += f.content;
      for (const ToolCall& c : f.calls) said += fmt::format("[{} {}]", c.name, c.arguments);
      if (f.partial) said += "..";
    }
    return said;
  };
  const auto hermes = [&](const std::string& text) {
    return parsed(ToolFormat::hermes, false, text);
  };
  EXPECT_EQ(hermes("Hi <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x"),
            "Hi[f {\"a\": \"x]..");
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\\\"g\", \"argum"), "[f\"g ]..");
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f"), "");
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\\"), "");
  EXPECT_EQ(hermes("<tool_call>{\"name\": \"f\"}\n</tool_"), "[f {}]");
  EXPECT_EQ(hermes("a < b <tool_c"), "a < b <tool_c");  // may be text
  EXPECT_EQ(parsed(ToolFormat::hermes, true, "<tool_c"), "");
  EXPECT_EQ(parsed(ToolFormat::llama, false, "{\"name\": \"f\", \"parameters\": "), "[f ]..");
  EXPECT_EQ(parsed(ToolFormat::llama, false, "{\"nam"), "{\"nam");  // may be JSON of another kind
  EXPECT_EQ(parsed(ToolFormat::llama, true, "{\"nam"), "");
}

TEST_F(Serving, NotesWhatTheLogSays) {
  open();
  const auto client =
      ask("/v1/completions", R"({"prompt":"abc","max_tokens":5,"ignore_eos":true})");
  EXPECT_EQ(client->note.completion_tokens, 5);
  EXPECT_EQ(client->note.prompt_tokens, 3);
  EXPECT_EQ(client->note.model, "m");
  EXPECT_EQ(client->note.finish_reason, "length");
  EXPECT_TRUE(client->note.id.starts_with("cmpl-"));
  EXPECT_GE(client->note.queue_ms, 0);
  EXPECT_GE(client->note.first_token_ms, client->note.queue_ms);
}

// The second prompt waits for the first one to end.
TEST_F(Serving, NotesTheQueueTimeOfTheFirstChoiceThatRuns) {
  ServeConfig one;
  one.batch = 1;
  open(one);
  const auto client =
      ask("/v1/completions", R"({"prompt":["abc","d"],"max_tokens":5,"n":2,"ignore_eos":true})");
  EXPECT_EQ(client->note.completion_tokens, 20);
  EXPECT_GE(client->note.queue_ms, 0);
  EXPECT_LE(client->note.queue_ms, client->note.first_token_ms);
}

}  // namespace
}  // namespace hearth
