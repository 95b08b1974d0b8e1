// Strict tools under tool_choice "auto": text is free, and a call that begins is one of a tool's.
#include <set>

#include "grammar/automaton.h"
#include "grammar/tool_grammar.h"
#include "serving.h"
#include "unit/message_of.h"
#include "unit/strict_tools.h"

namespace hearth {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

Automaton automaton_of(const char* opening, const char* closing, bool parallel) {
  const ordered_json asked{
      {"key", "arguments"},
      {"tools", {{{"name", "f"}, {"parameters", {{"const", {{"a", 1}}}}}}, {{"name", "now"}}}},
      {"text", {{"opening", opening}, {"closing", closing}, {"parallel", parallel}}}};
  return Automaton{Network(tools_grammar(asked, "tools"))};
}

bool takes(Automaton& a, std::string_view text) { return a.accepts(a.read(a.start(), text)); }

const std::string f = R"({"name": "f", "arguments": {"a":1}})";
const std::string now = R"({"name": "now", "arguments": {}})";

TEST(StrictTools, TextIsFreeAroundCalls) {
  Automaton a = automaton_of("<tool_call>", "</tool_call>", true);
  const std::string call = "<tool_call>\n" + f + "\n</tool_call>";
  for (const std::string& t :
       {std::string(), std::string("Hi {\"name\": 1}"), std::string("<<tool_cal"),
        std::string("\xff\x80 <think>"), call,
        "Sure. <<tool_call" + call + "\nand <tool_call>" + now + "</tool_call> done",
        std::string("</tool_call>")})
    EXPECT_TRUE(takes(a, t)) << t;
  for (const std::string& t :
       {std::string("<tool_call>"), "<tool_call>" + f, "x<tool_call>\n\n\n" + f + "</tool_call>",
        std::string("<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>"),
        std::string("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
        call + "<tool_call>x"})
    EXPECT_FALSE(takes(a, t)) << t;
  EXPECT_FALSE(a.ended(a.read(a.start(), call)));
  Automaton one = automaton_of("<tool_call>", "</tool_call>", false);
  EXPECT_TRUE(one.ended(one.read(one.start(), "Sure. " + call)));
}

TEST(StrictTools, AnAnswerIsACallOrText) {
  Automaton a = automaton_of("<|python_tag|>", "", true);
  for (const std::string& t :
       {std::string(), f, "\n " + now, "<|python_tag|>" + f, "<|python_tag|> " + now,
        std::string("Hello {x}"), std::string("<|python_"), std::string("<|python_x {"),
        std::string("  <b>"), std::string(" \n")})
    EXPECT_TRUE(takes(a, t)) << t;
  for (const std::string& t :
       {std::string("{"), std::string("{\"x\": 1}"), f + " x", std::string("<|python_tag|>"),
        std::string("<|python_tag|>x"), std::string(" {\"name\": \"g\"")})
    EXPECT_FALSE(takes(a, t)) << t;
  EXPECT_TRUE(a.ended(a.read(a.start(), f)));
}

class ServingStrictTools : public Serving {
 protected:
  void open_with(const char* source) {
    open();
    write_tool_folder(dir_.path(), source);
    serve({});
  }
  struct Answer {
    std::string content = {}, reason = {};
    std::vector<std::pair<std::string, std::string>> calls = {};
    bool operator==(const Answer&) const = default;
  };
  Answer whole(const std::string& body) {
    const json c = answer("/v1/chat/completions", body + "}")["choices"][0];
    Answer a{.reason = c["finish_reason"]};
    if (c["message"]["content"].is_string()) a.content = c["message"]["content"];
    for (const json& t : c["message"].value("tool_calls", json::array()))
      a.calls.emplace_back(t["function"]["name"], t["function"]["arguments"]);
    return a;
  }
  Answer streamed(const std::string& body) {
    Answer a;
    const auto client = ask("/v1/chat/completions", body + R"(,"stream":true})");
    for (const std::string& e : client->events) {
      if (e == "[DONE]") continue;
      const json d = json::parse(e)["choices"][0];
      a.content += d["delta"].value("content", "");
      if (!d["finish_reason"].is_null()) a.reason = d["finish_reason"];
      for (const json& t : d["delta"].value("tool_calls", json::array())) {
        if (t.contains("id")) a.calls.emplace_back(t["function"]["name"], "");
        a.calls.back().second += t["function"]["arguments"];
      }
    }
    return a;
  }
  static void expect_fits(const Answer& a) {
    for (const auto& [name, arguments] : a.calls) {
      const json j = json::parse(arguments);
      EXPECT_TRUE(j.is_object()) << arguments;
      if (name != "add") {
        EXPECT_EQ(name, "note");
        continue;
      }
      EXPECT_EQ(j.size(), 2u);
      EXPECT_TRUE(j["a"] >= 0 && j["a"] <= 9 && j["b"] >= 0 && j["b"] <= 8) << arguments;
      EXPECT_EQ(j["b"].get<int>() % 2, 0) << arguments;
    }
  }
};

TEST_F(ServingStrictTools, CallsMatchWhereverTheyBegin) {
  for (const char* source : {hermes_template(), llama_template()}) {
    open_with(source);
    const int32_t begin = source == hermes_template() ? tool_opening : '{';
    std::set<std::string> names;
    for (int seed = 0; seed < 16; ++seed) {
      // A call of "note" may go on to max_tokens: then it is cut.
      const std::string body =
          strict_request(begin, R"(,"parallel_tool_calls":false,"temperature":1.3,"seed":)" +
                                    std::to_string(seed));
      const Answer a = whole(body);
      EXPECT_TRUE(a == streamed(body)) << body;
      EXPECT_EQ(a.content, "");
      if (a.reason == "length") continue;
      EXPECT_EQ(a.reason, "tool_calls");
      ASSERT_EQ(a.calls.size(), 1u);
      names.insert(a.calls[0].first);
      expect_fits(a);
    }
    EXPECT_TRUE(names.contains("add"));
  }
}

TEST_F(ServingStrictTools, TextStaysFree) {
  open_with(hermes_template());
  const Answer text = whole(strict_request('x', R"(,"temperature":0)"));
  EXPECT_EQ(text.content, std::string(180, 'x'));
  EXPECT_EQ(text.reason, "length");
  // The model's end of text ends an answer without a call.
  EXPECT_EQ(whole(strict_request(served_eos)).reason, "stop");
  // Several calls, and one that is cut.
  const Answer many = whole(strict_request(tool_opening, R"(,"temperature":1.3,"seed":1)"));
  EXPECT_EQ(many.reason, "length");
  ASSERT_FALSE(many.calls.empty());
}

TEST_F(ServingStrictTools, WithoutStrictToolsNothingIsConstrained) {
  open_with(hermes_template());
  std::string body = strict_request(tool_opening, R"(,"temperature":0)");
  body.replace(body.find("true"), 4, "false");
  const Answer a = whole(body);
  EXPECT_TRUE(a.calls.empty());
  EXPECT_EQ(a.reason, "length");
}

TEST_F(ServingStrictTools, SchemasThatAreNotSupportedAreNamed) {
  open_with(hermes_template());
  std::string body = strict_request(tool_opening);
  body.replace(body.find("multipleOf"), 10, "multiplierOf");
  const HttpError e = error("/v1/chat/completions", body + "}");
  EXPECT_EQ(e.status, 400);
  EXPECT_EQ(e.param, "tools");
  EXPECT_NE(std::string(e.what()).find("\"add\""), std::string::npos) << e.what();
  EXPECT_NE(std::string(e.what()).find("multiplierOf"), std::string::npos) << e.what();
}

}  // namespace
}  // namespace hearth
