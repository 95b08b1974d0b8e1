// Strict tools through a server: streams and whole answers at once, all of them as their schemas
// say.
#include <set>

#include "e2e/serve_process.h"
#include "unit/strict_tools.h"

namespace hearth {
namespace {

using nlohmann::json;

TEST_F(Serve, CallsOfStrictToolsMatch) {
  write_tool_folder(folder_ / "model", hermes_template());
  start_server({"--name", "tiny"});
  std::mutex mutex;
  std::map<std::string, int> names;
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client)
    clients.emplace_back([&, client] {
      for (int i = 0; i < 6; ++i) {
        const std::string body = strict_request(
            client == 3 ? 'x' : tool_opening,
            R"(,"parallel_tool_calls":false,"temperature":1.3,"seed":)" +
                std::to_string(10 * client + i) + (i % 2 ? R"(,"stream":true})" : "}"));
        const Reply r = ask("POST", "/v1/chat/completions", body);
        std::string name, arguments, content, reason;
        const auto read = [&](const json& choice, const char* key) {
          const json& m = choice[key];
          if (m.contains("content") && m["content"].is_string())
            content += m["content"].get<std::string>();
          for (const json& t : m.value("tool_calls", json::array())) {
            name += t["function"].value("name", "");
            arguments += t["function"].value("arguments", "");
          }
          if (choice["finish_reason"].is_string()) reason = choice["finish_reason"];
        };
        if (i % 2 == 0) {
          read(r.json()["choices"][0], "message");
        } else {
          for (size_t at = 0; (at = r.body.find("data: {", at)) != std::string::npos;) {
            const size_t end = r.body.find('\n', at);
            read(json::parse(r.body.substr(at + 6, end - at - 6))["choices"][0], "delta");
            at = end;
          }
        }
        const std::lock_guard lock(mutex);
        ++names[client == 3 ? "text" : reason == "length" ? "cut" : name];
        EXPECT_EQ(r.status, 200);
        if (client == 3) {
          EXPECT_EQ(content.substr(0, 20), std::string(20, 'x'));
          EXPECT_EQ(name, "");
        } else {
          EXPECT_EQ(content, "");
        }
        if (reason != "tool_calls") continue;
        const json j = json::parse(arguments);
        EXPECT_TRUE(name != "add" || (j.size() == 2 && j["a"] <= 9 && j["b"].get<int>() % 2 == 0))
            << arguments;
      }
    });
  for (std::thread& t : clients) t.join();
  EXPECT_GT(names["add"], 0);
  EXPECT_EQ(names["text"], 6);
  expect_all_free();
  EXPECT_EQ(stop(SIGTERM), 0);
}

}  // namespace
}  // namespace hearth
