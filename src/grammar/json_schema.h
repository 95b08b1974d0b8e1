// JSON schemas as grammars. Properties come in the order in which the schema declares them. A
// keyword that would change the answer and is not supported is a usage error with its path.
#pragma once

#include <deque>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "formats/json.h"
#include "grammar/json_phrases.h"
#include "sys/error.h"

namespace hearth::inline grammar {

// The two parts of an error `[where] what`. `begin` is how its where begins, which may contain
// brackets.
struct ErrorParts {
  std::string where, what;
};
ErrorParts parts_of(const Error&, std::string_view begin);

constexpr int most_nested = 64;  // schemas within schemas

// Whether a keyword says something about a schema and nothing about its values.
bool is_annotation(std::string_view keyword);

class SchemaPhrases {
 public:
  using Json = nlohmann::ordered_json;
  // The root must outlive it: references are looked up in it. `where` names it in errors.
  SchemaPhrases(ByteGrammar&, JsonPhrases&, const Json& root, std::string where);

  Phrase root() { return schema(root_, ""); }

 private:
  Phrase schema(const Json&, const std::string& path);
  Phrase by_type(const Json&, const std::string& path);
  Phrase typed(const Json&, const std::string& type, const std::string& path);
  Phrase reference(const Json&, const std::string& path);
  Phrase alternatives(const Json&, const char* keyword, const std::string& path);
  Phrase constants(const Json&, const std::string& path);
  Phrase object(const Json&, const std::string& path);
  // Those that an object declares or requires, in the order in which they are written.
  struct Names {
    std::vector<std::string> all = {};
    std::set<std::string> required = {};
  };
  Names names_of(const Json& properties, const Json& required, bool open, const std::string& path);
  Phrase dictionary(const Json&, const std::string& path);
  Phrase name(const Json&, const std::string& path);
  Phrase array(const Json&, const std::string& path);
  Phrase string(const Json&, const std::string& path);
  NumberBounds bounds(const Json&, const std::string& path);

  // One schema for those of allOf and the keywords beside it.
  Json all_of(const Json&, const std::string& path);
  void merge(Json& into, const Json&, const std::string& path) const;

  const Json& resolve(const std::string& reference, const std::string& path);
  // The member of an object that has this name, or null.
  const Json* member(const Json& object, const std::string& name);
  // Whether no value can match both; false if that is not certain.
  bool disjoint(const Json& a, const Json& b, int depth);
  bool disjoint_constants(const Json& a, const Json& b);
  bool disjoint_properties(const Json& a, const Json& b, int depth);
  const Json& followed(const Json&);
  void compare(size_t values);  // counts the work of oneOf

  template <class... A>
  [[noreturn]] void refuse(const std::string& path, fmt::format_string<A...> what,
                           A&&... args) const {
    fail_usage(where_, "at {}: {}", in_quotes("#" + path),
               fmt::format(what, std::forward<A>(args)...));
  }
  // Calls f; an error of it gets the path.
  template <class F>
  Phrase located(const std::string& path, F&& f) const {
    try {
      return f();
    } catch (const Error& e) { refuse(path, "{}", parts_of(e, g_.where()).what); }
  }
  void allow_only(const Json&, std::initializer_list<const char*> known,
                  const std::string& path) const;
  int64_t count(const Json&, const char* keyword, int64_t otherwise, const std::string& path) const;

  ByteGrammar& g_;
  JsonPhrases& json_;
  const Json& root_;
  const std::string where_;
  std::deque<Json> merged_;              // schemas made of several
  std::map<const Json*, RuleId> rules_;  // of schemas that are referred to
  // The members of large objects by their names.
  std::map<const Json*, std::unordered_map<std::string_view, const Json*>> indexes_;
  size_t compared_ = 0, copied_ = 0;
  int depth_ = 0;
};

// Grammars of whole answers.
ByteGrammar regex_grammar(std::string_view pattern, std::string where);
ByteGrammar schema_grammar(const nlohmann::ordered_json& schema, std::string where);
ByteGrammar any_object_grammar(std::string where);

}  // namespace hearth::inline grammar
