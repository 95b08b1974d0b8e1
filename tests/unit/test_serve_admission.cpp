// What a request's head decides: the key, the route, the type of the body, and the Host and Origin
// by which a browser's page of another site is told.
#include "serve/admission.h"

#include <gtest/gtest.h>

#include <map>

namespace hearth {
namespace {

// The status of a head; 200: it is let in.
int status(const Admission& admission, const HttpRequest& r) {
  try {
    admission.check_browser(r);
    if (!admission.is_preflight(r)) admission.route(r);
  } catch (const HttpError& e) { return e.status; }
  return 200;
}

int status_of_host(const Admission& admission, const std::string& host,
                   const std::string& origin = "") {
  return status(admission, {.method = "GET", .path = "/health", .host = host, .origin = origin});
}

TEST(Admission, OnLoopbackAnswersToItsOwnNamesOnly) {
  const Admission local({}, true);
  for (const char* host :
       {"localhost", "LocalHost:8080", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:65535", ""})
    EXPECT_EQ(status_of_host(local, host), 200) << host;
  for (const char* host :
       {"evil.example", "localhost.evil.example", "evil.example:8080", "127.0.0.1.evil.example",
        "localhost:80:80", "localhost:x", "localhost:123456", "user@localhost", "[::1", "::1:80",
        "localhost ", "127.0.0.2", "[::2]", ":8080"})
    EXPECT_EQ(status_of_host(local, host), 403) << host;

  ServeConfig named;
  named.http.allowed_host = {"Model.example.org", "[::2]"};
  const Admission more(named, true);
  EXPECT_EQ(status_of_host(more, "model.EXAMPLE.org:443"), 200);
  EXPECT_EQ(status_of_host(more, "[::2]:1"), 200);
  EXPECT_EQ(status_of_host(more, "localhost"), 200);
  EXPECT_EQ(status_of_host(more, "other.example.org"), 403);
  // Other machines call a server by names it cannot know, until it is told them.
  EXPECT_EQ(status_of_host(Admission({}, false), "anything"), 200);
  EXPECT_EQ(status_of_host(Admission(named, false), "anything"), 403);
}

TEST(Admission, RefusesPagesOfOtherSites) {
  const Admission local({}, true);
  EXPECT_EQ(status_of_host(local, "localhost:8080", "http://localhost:8080"), 200);
  for (const char* origin : {"https://evil.example", "null", "http://localhost:3000",
                             "http://localhost:8080.evil.example", "file://"})
    EXPECT_EQ(status_of_host(local, "localhost:8080", origin), 403) << origin;
  EXPECT_EQ(status_of_host(local, "", "http://"), 403);
  ServeConfig one, any;
  one.http.cors_origin = "https://example.org";
  any.http.cors_origin = "*";
  EXPECT_EQ(status_of_host(Admission(one, true), "localhost", "https://example.org"), 200);
  EXPECT_EQ(status_of_host(Admission(one, true), "localhost", "https://example.com"), 403);
  EXPECT_EQ(status_of_host(Admission(any, true), "localhost", "https://example.com"), 200);
  EXPECT_EQ(status_of_host(Admission({}, false), "host", "https://example.com"), 200);
}

TEST(Admission, AsksForJson) {
  const Admission local({}, true);
  const auto post = [&](const std::string& type, const std::string& encoding = "") {
    return status(local, {.method = "POST",
                          .path = "/tokenize",
                          .content_type = type,
                          .content_encoding = encoding});
  };
  for (const char* type : {"application/json", "Application/JSON", "application/json;charset=utf-8",
                           "application/json ; charset=utf-8"})
    EXPECT_EQ(post(type), 200) << type;
  for (const char* type :
       {"", "application/x-www-form-urlencoded", "text/plain", "application/jsonx",
        "application/json, text/plain", "; application/json"})
    EXPECT_EQ(post(type), 415) << type;
  EXPECT_EQ(post("application/json", "identity"), 200);
  EXPECT_EQ(post("application/json", "gzip"), 415);
  try {
    local.route({.method = "POST", .path = "/tokenize", .content_type = "text/plain"});
    FAIL();
  } catch (const HttpError& e) {
    EXPECT_NE(std::string(e.what()).find("-H 'Content-Type: application/json'"), std::string::npos)
        << e.what();
  }
}

// The message of the 404 for a path; empty: there is none.
std::string refused(const Admission& admission, const std::string& path) {
  try {
    admission.route({.method = "POST", .path = path, .content_type = "application/json"});
  } catch (const HttpError& e) {
    EXPECT_EQ(e.status, 404) << path;
    return e.what();
  }
  return "";
}

TEST(Admission, SuggestsTheRouteThatIsMeant) {
  const Admission local({}, true);
  const auto said = [&](const std::string& path) { return refused(local, path); };
  const std::string expected = "[path] expected a route of this server, got \"POST\" ";
  EXPECT_EQ(said("/completions"), expected + "\"/completions\"; did you mean /v1/completions?");
  EXPECT_EQ(said("/v1/chat/completions/"),
            expected + "\"/v1/chat/completions/\"; did you mean /v1/chat/completions?");
  EXPECT_EQ(said("/chat/completions/"),
            expected + "\"/chat/completions/\"; did you mean /v1/chat/completions?");
  EXPECT_EQ(said("/tokenize/"), expected + "\"/tokenize/\"; did you mean /tokenize?");
}

TEST(Admission, SuggestsTheNearestRouteOrListsAll) {
  const Admission local({}, true);
  const std::string all =
      "the routes are GET /health, GET /metrics, GET /v1/models, GET /tokenizer_info, POST "
      "/tokenize, POST /detokenize, POST /v1/completions, POST /v1/chat/completions";
  for (const auto& [path, meant] : std::map<std::string, std::string>{
           {"/v2/completions", "did you mean /v1/completions?"},
           {"/v1/completions/x", "did you mean /v1/completions?"},
           {"/v1/chat/completion", "did you mean /v1/chat/completions?"},
           {"/chat/completion", "did you mean /v1/chat/completions?"},
           {"/helth", "did you mean /health?"},
           {"/v1/models/", "did you mean /v1/models?"},
           {"", all},
           {"//", all},
           {"/v1", all},
           {"/v1/", all},
           {"/nowhere", all},
           {"/v1/embeddings", all}}) {
    EXPECT_EQ(refused(local, path),
              "[path] expected a route of this server, got \"POST\" \"" + path + "\"; " + meant);
  }
  EXPECT_TRUE(refused(local, "/" + std::string(300, 'x')).ends_with("; " + all));
}

TEST(Admission, HeadIsAskedWhereGetIs) {
  const Admission local({}, true);
  for (const Route& route : routes())
    EXPECT_EQ(status(local, {.method = "HEAD", .path = route.path}), route.reads_body() ? 405 : 200)
        << route.path;
  EXPECT_EQ(status(local, {.method = "HEAD", .path = "/v1/models/x"}), 200);
  EXPECT_EQ(status(local, {.method = "HEAD", .path = "/nowhere"}), 404);
}

}  // namespace
}  // namespace hearth
