// Pages: the files of the web app, which are part of the program. The same app is the dashboard of
// `hearth board` and the chat page of `hearth serve`; /api/info tells it which pages there are.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "http/http.h"

namespace hearth::inline board {

struct PageFile {
  const char* path;  // "/app.js"
  const char* type;
  std::string_view bytes;
};
std::span<const PageFile> page_files();

// Whether a request asks for a file of the app. Such files need no API key.
bool is_page(std::string_view path);

// The answer for a path of the app, with the headers that keep a page from loading or running
// anything else. 304 if the browser has this version already.
HttpResponse page_response(const HttpRequest&);

// The policy that browsers enforce on the app's pages.
extern const std::string_view content_security_policy;

// The answer of /api/info. `pages`: "runs", "chat".
HttpResponse info_response(const std::vector<std::string>& pages, const std::string& root);

// A JSON answer of the API; browsers neither keep it nor take it for another type.
HttpResponse api_response(std::string json);

}  // namespace hearth::inline board
