#include "board/pages.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "board/page_bytes.h"
#include "sys/build_info.h"
#include "sys/compression/compression.h"
#include "sys/hash/hash.h"

namespace hearth::inline board {

const std::string_view content_security_policy =
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: "
    "blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

namespace {

// A file as it is sent.
struct SentPage {
  std::string etag;
  std::string gzip;  // empty: in a build without zlib, or if it would not be smaller
};

// Made when a file is first asked for.
const SentPage& sent_page(const PageFile& file) {
  static std::mutex mutex;
  static std::map<std::string_view, SentPage> all;
  const std::lock_guard lock(mutex);
  const auto [at, is_new] = all.try_emplace(file.path);
  if (is_new) {
    at->second.etag = "\"" + sha256_hex(to_bytes(file.bytes)).substr(0, 32) + "\"";
    at->second.gzip = gzip(to_bytes(file.bytes));
    if (at->second.gzip.size() >= file.bytes.size()) at->second.gzip.clear();
  }
  return at->second;
}

const PageFile* find_page(std::string_view path) {
  const auto files = page_files();
  const auto at = std::ranges::find(files, path, [](const PageFile& f) { return f.path; });
  return at == files.end() ? nullptr : &*at;
}

}  // namespace

std::span<const PageFile> page_files() {
  static const auto files =
      std::to_array<PageFile>({{"/", "text/html; charset=utf-8", page_index_html()},
                               {"/app.js", "text/javascript; charset=utf-8", page_app_js()},
                               {"/app.css", "text/css; charset=utf-8", page_app_css()}});
  return files;
}

bool is_page(std::string_view path) { return find_page(path) != nullptr; }

HttpResponse page_response(const HttpRequest& r) {
  const PageFile* file = find_page(r.path);
  if (!file) throw HttpError(404, "[path] there is no such page");
  const SentPage& p = sent_page(*file);
  HttpResponse answer{.type = file->type};
  answer.headers = {{"Content-Security-Policy", std::string(content_security_policy)},
                    {"X-Content-Type-Options", "nosniff"},
                    {"Referrer-Policy", "no-referrer"},
                    {"Cache-Control", "no-cache"},
                    {"Vary", "Accept-Encoding"},
                    {"ETag", p.etag}};
  if (r.if_none_match.find(p.etag) != std::string::npos) {
    answer.status = 304;
  } else if (!p.gzip.empty() && r.accept_encoding.find("gzip") != std::string::npos) {
    answer.headers.emplace_back("Content-Encoding", "gzip");
    answer.body = p.gzip;
  } else {
    answer.body = file->bytes;
  }
  return answer;
}

HttpResponse api_response(std::string json) {
  return {.body = std::move(json),
          .headers = {{"X-Content-Type-Options", "nosniff"}, {"Cache-Control", "no-store"}}};
}

HttpResponse info_response(const std::vector<std::string>& pages, const std::string& root) {
  const nlohmann::ordered_json j{{"program", "hearth"},
                                 {"version", build_info().version},
                                 {"pages", pages},
                                 {"root", root},
                                 {"readonly", true}};
  return api_response(j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace hearth::inline board
