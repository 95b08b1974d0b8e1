#include "formats/json.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sys/edit_distance.h"
#include "sys/error.h"

namespace hearth::inline formats {
namespace {

using nlohmann::json;

// Builds the value like nlohmann's own parser, but rejects duplicate keys and deep nesting.
// Returning false stops the parser.
template <class Json>
class StrictReader : public nlohmann::json_sax<Json> {
 public:
  using typename nlohmann::json_sax<Json>::number_integer_t;
  using typename nlohmann::json_sax<Json>::number_unsigned_t;
  using typename nlohmann::json_sax<Json>::number_float_t;
  using typename nlohmann::json_sax<Json>::string_t;
  using typename nlohmann::json_sax<Json>::binary_t;

  explicit StrictReader(size_t max_depth) : max_depth_(max_depth) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(v); }
  bool number_unsigned(number_unsigned_t v) override { return put(v); }
  bool number_float(number_float_t v, const string_t&) override { return put(v); }
  bool string(string_t& v) override { return put(std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& k) override {
    const bool is_new = add_member(open_.back()->template get_ref<typename Json::object_t&>(), k);
    if (!is_new) problem_ = fmt::format("expected every key once, got {} twice", in_quotes(k));
    return is_new;
  }

  // `byte` is the 1-based position of the last byte read.
  bool parse_error(size_t byte, const std::string&, const json::exception& e) override {
    byte_ = byte;
    problem_ = "expected valid JSON, got: " + reason(e.what());
    return false;
  }

  Json take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }
  size_t error_byte() const { return byte_; }  // 0: position unknown

 private:
  bool add_member(json::object_t& object, const std::string& key) {
    const auto [at, is_new] = object.emplace(key, nullptr);
    member_ = &at->second;
    return is_new;
  }
  // An ordered object is a list without an index; a separate set of keys keeps long objects from
  // taking quadratic time.
  bool add_member(nlohmann::ordered_json::object_t& object, const std::string& key) {
    if (!keys_.back().insert(key).second) return false;
    object.push_back({key, nullptr});
    member_ = &object.back().second;
    return true;
  }

  Json* place(Json&& v) {
    if (open_.empty()) return &(root_ = std::move(v));
    if (open_.back()->is_object()) return &(*member_ = std::move(v));
    auto& array = open_.back()->template get_ref<typename Json::array_t&>();
    array.push_back(std::move(v));
    return &array.back();
  }
  bool put(Json&& v) {
    place(std::move(v));
    return true;
  }
  bool open(Json&& v) {
    if (open_.size() == max_depth_) {
      problem_ = fmt::format("expected nesting of at most {}, got more", max_depth_);
      return false;
    }
    open_.push_back(place(std::move(v)));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  // nlohmann's message without its prefix and without the quoted input, which may be long or
  // binary.
  static std::string reason(std::string text) {
    if (const size_t colon = text.find(": "); colon != text.npos) text.erase(0, colon + 2);
    const size_t quote = text.find("; last read: '");
    if (quote != text.npos) text.erase(quote, text.rfind('\'') + 1 - quote);
    for (char& c : text)
      if (c >= 0 && c < ' ') c = ' ';  // an error is one line
    return text;
  }

  size_t max_depth_;
  Json root_;
  std::vector<Json*> open_;
  std::vector<std::unordered_set<std::string>> keys_;  // keys of each open ordered object
  Json* member_ = nullptr;
  std::string problem_;
  size_t byte_ = 0;
};

struct Neighbour {
  std::string_view text;
  size_t distance = std::string_view::npos;
};

template <class S>
Neighbour nearest_of(std::string_view key, std::span<const S> candidates) {
  constexpr size_t longest = 64;  // a key in a request may be megabytes long
  key = key.substr(0, longest);
  Neighbour best;
  for (const std::string_view c : candidates)
    if (const size_t d = edit_distance(key, c, Swap::one_edit); d < best.distance) best = {c, d};
  return best;
}

// What `where` names in errors: a file, to which they add line and column, or a line of one.
enum class Place { file, line };

template <class Json>
Json parse_strictly(std::string_view text, std::string_view where, JsonLimits limits,
                    Place place = Place::file) {
  if (text.size() > limits.max_bytes) {
    fail(where, "expected at most {} bytes of JSON, got {}", limits.max_bytes, text.size());
  }
  StrictReader<Json> reader(limits.max_depth);
  if (Json::sax_parse(text.begin(), text.end(), &reader)) return reader.take();
  if (reader.error_byte() == 0) fail(where, "{}", reader.problem());
  const std::string_view before = text.substr(0, reader.error_byte() - 1);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
  if (place == Place::line) fail(fmt::format("{}:{}", where, column), "{}", reader.problem());
  fail(fmt::format("{}:{}:{}", where, line, column), "{}", reader.problem());
}

// Without its line end, so that the column of an error is in the line.
std::string_view without_line_end(std::string_view line) {
  while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

json parse_json(std::string_view text, std::string_view where, JsonLimits limits) {
  return parse_strictly<json>(text, where, limits);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view where,
                                          JsonLimits limits) {
  return parse_strictly<nlohmann::ordered_json>(text, where, limits);
}

json parse_json_line(std::string_view line, std::string_view where) {
  return parse_strictly<json>(without_line_end(line), where, {}, Place::line);
}

nlohmann::ordered_json parse_ordered_json_line(std::string_view line, std::string_view where) {
  return parse_strictly<nlohmann::ordered_json>(without_line_end(line), where, {}, Place::line);
}

json read_json(const std::filesystem::path& path, JsonLimits limits) {
  return parse_json(read_file(path, limits.max_bytes), path.string(), limits);
}

std::string in_quotes(std::string_view s) {
  constexpr size_t longest = 80;
  std::string text = json(std::string(s.substr(0, longest)))
                         .dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  return s.size() > longest ? text + "..." : text;
}

std::string nearest(std::string_view key, std::span<const std::string_view> candidates) {
  return std::string(nearest_of(key, candidates).text);
}
std::string nearest(std::string_view key, std::span<const std::string> candidates) {
  return std::string(nearest_of(key, candidates).text);
}

namespace {

template <class S>
std::string near_of(std::string_view key, std::span<const S> candidates) {
  const Neighbour best = nearest_of(key, candidates);
  return best.distance <= std::max<size_t>(1, key.size() / 3) ? std::string(best.text) : "";
}

}  // namespace

std::string near(std::string_view key, std::span<const std::string_view> candidates) {
  return near_of(key, candidates);
}
std::string near(std::string_view key, std::span<const std::string> candidates) {
  return near_of(key, candidates);
}

}  // namespace hearth::inline formats
