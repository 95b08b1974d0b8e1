// A config struct lists its fields once, in a member `visit(v)` that calls v(name, field, help) for
// each. JSON input and output, equality, flags and help are generated from it. An enum needs an
// overload `names_of(E)` that lists its enumerators' names in order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "formats/json.h"
#include "sys/error.h"

namespace hearth::inline formats {

template <class E>
std::string_view enum_name(E e) {
  return names_of(e)[size_t(e)];
}

template <class E>
std::optional<E> find_enum(std::string_view text) {
  const auto names = names_of(E{});
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == text) return E(i);
  return {};
}

// The end of an error about an unknown name: "; did you mean A or B?", for names that begin with
// the text or are near it; empty: there are none.
std::string did_you_mean(std::string_view text, std::span<const std::string_view> names);

// For a flag: '-' may stand for '_', as in the names of flags. An unknown name is a usage error.
template <class E>
E parse_enum(std::string_view text, std::string_view where) {
  if (const std::optional<E> found = find_enum<E>(text)) return *found;
  std::string name(text);
  std::ranges::replace(name, '-', '_');
  if (const std::optional<E> found = find_enum<E>(name)) return *found;
  fail_usage(where, "expected one of {}, got {}{}", fmt::join(names_of(E{}), ", "), in_quotes(text),
             did_you_mean(name, names_of(E{})));
}

// For a file: an unknown name is an error in the file, not in the command line.
template <class E>
E enum_in_file(std::string_view text, std::string_view where) {
  if (const std::optional<E> found = find_enum<E>(text)) return *found;
  fail(where, "expected one of {}, got {}", fmt::join(names_of(E{}), ", "), in_quotes(text));
}

// The number that the shortest decimal text of a float means, for files and messages: 0.1 for 0.1f,
// whose own value is 0.10000000149011612. Rounded to float it is `x` again.
double shortest_number(float x);

// Whether two values of a setting are equal, where a float may also be written in full, as earlier
// versions did.
bool same_setting(const nlohmann::json& a, const nlohmann::json& b);

template <class C>
nlohmann::ordered_json fields_to_json(const C& config) {
  nlohmann::ordered_json j;
  const_cast<C&>(config).visit([&](const char* name, const auto& field, const char*) {
    if constexpr (std::is_enum_v<std::decay_t<decltype(field)>>)
      j[name] = enum_name(field);
    else if constexpr (std::is_same_v<std::decay_t<decltype(field)>, float>)
      j[name] = shortest_number(field);
    else
      j[name] = field;
  });
  return j;
}

template <class C>
std::vector<std::string> field_names(const C& config) {
  std::vector<std::string> names;
  const_cast<C&>(config).visit(
      [&](const char* name, const auto&, const char*) { names.push_back(name); });
  return names;
}

template <class C>
bool fields_equal(const C& a, const C& b) {
  return fields_to_json(a) == fields_to_json(b);
}

template <class T>
void field_from_json(T& field, const nlohmann::json& j, const std::string& where) {
  if constexpr (std::is_enum_v<T>) {
    if (!j.is_string()) fail(where, "expected a name, got {}", j.dump());
    field = enum_in_file<T>(j.get<std::string>(), where);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!j.is_boolean()) fail(where, "expected true or false, got {}", j.dump());
    field = j.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    if (!j.is_number_integer()) fail(where, "expected a whole number, got {}", j.dump());
    const bool fits = j.is_number_unsigned() ? std::in_range<T>(j.get<uint64_t>())
                                             : std::in_range<T>(j.get<int64_t>());
    if (!fits) fail(where, "expected a whole number in range, got {}", j.dump());
    field = j.get<T>();
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!j.is_number() || !std::isfinite(j.get<T>()))  // not finite: too large for T
      fail(where, "expected a number, got {}", j.dump());
    field = j.get<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!j.is_string()) fail(where, "expected a string, got {}", j.dump());
    field = j.get<std::string>();
  } else {
    if (!j.is_array()) fail(where, "expected a list, got {}", j.dump());
    field = j.get<T>();
  }
}

// Sets the fields named in `j`; an unknown key is an error that names the nearest field.
template <class C>
void fields_from_json(C& config, const nlohmann::json& j, const std::string& where) {
  if (!j.is_object()) fail(where, "expected an object, got {}", j.dump().substr(0, 40));
  const std::vector<std::string> names = field_names(config);
  for (const auto& [key, value] : j.items())
    if (std::find(names.begin(), names.end(), key) == names.end())
      fail(where, "expected a known key, got {}; the nearest is {}", in_quotes(key),
           nearest(key, names));
  config.visit([&](const char* name, auto& field, const char*) {
    if (j.contains(name)) field_from_json(field, j.at(name), where + "." + name);
  });
}

}  // namespace hearth::inline formats
