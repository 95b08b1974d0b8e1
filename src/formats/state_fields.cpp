#include "formats/state_fields.h"

#include <cmath>
#include <utility>

#include "sys/error.h"

namespace hearth::inline formats {

using nlohmann::json;

namespace {

// The value for an error message: one line, truncated.
std::string shown(const json& j) {
  std::string text = j.dump(-1, ' ', /*ensure_ascii=*/true);
  return text.size() > 40 ? text.substr(0, 40) + ".." : text;
}

}  // namespace

StateFields::StateFields(const json& object, std::string where, std::string name)
    : object_(object), where_(std::move(where)), name_(std::move(name)) {
  if (!object.is_object())
    fail(where_, "expected {} to be an object, got {}", name_.empty() ? "the state" : name_,
         shown(object));
}

std::string StateFields::named(const std::string& key) const {
  return name_.empty() ? key : name_ + "." + key;
}

void StateFields::refuse(const std::string& key, std::string_view wanted, const json& got) const {
  fail(where_, "expected {} to be {}, got {}", named(key), wanted, shown(got));
}

bool StateFields::has(const std::string& key) const {
  return object_.contains(key) && !object_.at(key).is_null();
}

const json& StateFields::value(const std::string& key) const {
  const auto it = object_.find(key);
  if (it == object_.end()) fail(where_, "the field {} is missing", named(key));
  return *it;
}

int64_t StateFields::checked_integer(const json& j, const std::string& key, int64_t least,
                                     int64_t most) const {
  const bool fits = j.is_number_unsigned() ? std::cmp_less_equal(j.get<uint64_t>(), most) &&
                                                 std::cmp_greater_equal(j.get<uint64_t>(), least)
                                           : j.is_number_integer() && j.get<int64_t>() >= least &&
                                                 j.get<int64_t>() <= most;
  if (!fits) refuse(key, fmt::format("a whole number from {} to {}", least, most), j);
  return j.get<int64_t>();
}

double StateFields::checked_number(const json& j, const std::string& key, double least,
                                   double most) const {
  if (!j.is_number()) refuse(key, "a number", j);
  const double x = j.get<double>();
  if (!std::isfinite(x)) refuse(key, "a finite number", j);
  if (x < least || x > most) refuse(key, fmt::format("a number from {} to {}", least, most), j);
  return x;
}

int64_t StateFields::integer(const std::string& key, int64_t least, int64_t most) const {
  return checked_integer(value(key), key, least, most);
}

double StateFields::number(const std::string& key, double least, double most) const {
  return checked_number(value(key), key, least, most);
}

bool StateFields::boolean(const std::string& key) const {
  const json& j = value(key);
  if (!j.is_boolean()) refuse(key, "true or false", j);
  return j.get<bool>();
}

std::string StateFields::text(const std::string& key) const {
  const json& j = value(key);
  if (!j.is_string()) refuse(key, "a text", j);
  return j.get<std::string>();
}

std::string StateFields::sha256(const std::string& key) const {
  std::string sum = text(key);
  if (sum.size() != 64 || sum.find_first_not_of("0123456789abcdef") != sum.npos)
    refuse(key, "a SHA-256 of 64 hexadecimal digits", sum);
  return sum;
}

StateFields StateFields::object(const std::string& key) const {
  return {value(key), where_, named(key)};
}

const json& StateFields::list(const std::string& key, size_t size) const {
  const json& j = value(key);
  if (!j.is_array() || j.size() > size)
    refuse(key, fmt::format("a list of at most {} entries", size), j);
  return j;
}

std::vector<int64_t> StateFields::integers(const std::string& key, size_t size, int64_t least,
                                           int64_t most) const {
  std::vector<int64_t> all;
  for (const json& j : list(key, size)) all.push_back(checked_integer(j, key, least, most));
  return all;
}

std::vector<double> StateFields::numbers(const std::string& key, size_t size) const {
  constexpr double limit = std::numeric_limits<double>::max();
  std::vector<double> all;
  for (const json& j : list(key, size)) all.push_back(checked_number(j, key, -limit, limit));
  return all;
}

std::vector<StateFields> StateFields::objects(const std::string& key, size_t size) const {
  std::vector<StateFields> all;
  for (const json& j : list(key, size)) all.emplace_back(j, where_, named(key));
  return all;
}

}  // namespace hearth::inline formats
