// Fields: the members of a request's JSON object, each read once by name, type and range. Members
// that were not read are an error at the end.
#pragma once

#include <cmath>
#include <cstdint>
#include <set>
#include <string>

#include "formats/json.h"
#include "http/http.h"

namespace hearth::inline serve {

class Fields {
 public:
  using Json = nlohmann::ordered_json;

  explicit Fields(const Json& object, std::string where = {})
      : object_(object), where_(std::move(where)) {
    if (!object.is_object())
      refuse(where_.empty() ? "body" : where_, "expected an object, got {}", object.type_name());
  }

  // Null if the member is absent or null.
  const Json* find(const std::string& name) {
    known_.insert(name);
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  std::string path(const std::string& name) const {
    return where_.empty() ? name : where_ + "." + name;
  }

  int64_t integer(const std::string& name, int64_t otherwise, int64_t low, int64_t high) {
    const Json* j = find(name);
    return j ? whole_number(*j, path(name), low, high) : otherwise;
  }
  double number(const std::string& name, double otherwise, double low, double high) {
    const Json* j = find(name);
    return j ? real_number(*j, path(name), low, high) : otherwise;
  }
  bool boolean(const std::string& name, bool otherwise) {
    const Json* j = find(name);
    if (!j) return otherwise;
    if (!j->is_boolean()) refuse(path(name), "expected true or false, got {}", j->type_name());
    return j->get<bool>();
  }
  std::string string(const std::string& name) {
    const Json* j = find(name);
    if (!j) return {};
    if (!j->is_string()) refuse(path(name), "expected a string, got {}", j->type_name());
    return j->get<std::string>();
  }

  void ignore(std::initializer_list<const char*> names) {
    known_.insert(names.begin(), names.end());
  }
  // Rejects members that are not fields of the request.
  void refuse_others() const {
    for (const auto& [key, value] : object_.items()) {
      if (known_.contains(key)) continue;
      const std::string meant = near(key, std::vector<std::string>(known_.begin(), known_.end()));
      refuse(path(key.substr(0, 64)), "expected a known field, got {}{}", in_quotes(key),
             meant.empty() ? "" : fmt::format("; did you mean {}?", meant));
    }
  }

  static int64_t whole_number(const Json& j, const std::string& where, int64_t low, int64_t high) {
    const bool whole = j.is_number_integer();
    const bool huge = j.is_number_unsigned() && j.get<uint64_t>() > uint64_t(INT64_MAX);
    if (!whole || huge || j.get<int64_t>() < low || j.get<int64_t>() > high)
      refuse(where, "expected a whole number from {} to {}, got {}", low, high,
             j.is_number() ? j.dump() : j.type_name());
    return j.get<int64_t>();
  }
  static double real_number(const Json& j, const std::string& where, double low, double high) {
    if (!j.is_number() || !(j.get<double>() >= low && j.get<double>() <= high))
      refuse(where, "expected a number from {} to {}, got {}", low, high,
             j.is_number() ? j.dump() : j.type_name());
    return j.get<double>();
  }

 private:
  const Json& object_;
  std::string where_;
  std::set<std::string> known_;
};

}  // namespace hearth::inline serve
