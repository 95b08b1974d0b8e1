// Flags generated from visited configs: one per field, with its help and default. Values are kept
// as text until apply(), so that they can be applied on top of a preset.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "formats/fields.h"
#include "optim/optimizers.h"

namespace hearth::inline cli {

inline constexpr const char* model_group = "Model (overrides the preset)";

inline std::string flag_name(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return "--" + field;
}

template <class T>
void field_from_text(T& field, const std::vector<std::string>& text, const std::string& where) {
  const std::string& s = text.back();
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    field = text;
  } else if constexpr (std::is_same_v<T, std::string>) {
    field = s;
  } else if constexpr (std::is_enum_v<T>) {
    field = parse_enum<T>(s, where);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (s != "true" && s != "false") fail_usage(where, "expected true or false, got '{}'", s);
    field = s == "true";
  } else {
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), field);
    using Range = std::numeric_limits<T>;
    if (std::is_integral_v<T> && error == std::errc::result_out_of_range)
      fail_usage(where, "expected {} to {}, got {}", Range::min(), Range::max(), s);
    if (error != std::errc{} || end != s.data() + s.size() || !std::isfinite(double(field)))
      fail_usage(where, "expected a {}number, got '{}'", std::is_integral_v<T> ? "whole " : "", s);
  }
}

template <class C>
class FieldFlags {
 public:
  // Adds a flag for every field of `defaults`; the help shows the default values.
  void add(CLI::App& app, const C& defaults, const std::string& group) {
    const_cast<C&>(defaults).visit([&](const char* name, const auto& field, const char* help) {
      using T = std::decay_t<decltype(field)>;
      const std::string key = name;
      CLI::Option* o;
      if constexpr (std::is_same_v<T, bool>) {
        // accepts --flag, --flag=false and --no-flag
        o = app.add_flag_function(
            flag_name(key) + "{true},!--no-" + flag_name(key).substr(2),
            [this, key](int64_t n) { given_[key] = {n > 0 ? "true" : "false"}; }, help);
      } else {
        o = app.add_option_function<std::vector<std::string>>(
            flag_name(key), [this, key](const std::vector<std::string>& v) { given_[key] = v; },
            help);
        if constexpr (std::is_same_v<T, std::vector<std::string>>)
          o->expected(1, 100000)->allow_extra_args(false);  // "[END]" is a value, not a list
        else
          o->expected(1)
              ->allow_extra_args(false)  // CLI11 would parse "[a, b]" as a list
              ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      }
      o->group(group)->default_str(default_text(field));
    });
  }
  bool given(const std::string& field) const { return given_.contains(field); }
  bool any_given() const { return !given_.empty(); }
  // The fields that were given, in their order, with their values: " layers 2 dim 64".
  std::string given_text() const {
    std::string text;
    C{}.visit([&](const char* name, auto&, const char*) {
      if (const auto it = given_.find(name); it != given_.end())
        text += fmt::format(" {} {}", flag_name(name).substr(2), fmt::join(it->second, ","));
    });
    return text;
  }

  void apply(C& config) const {
    config.visit([&](const char* name, auto& field, const char*) {
      if (const auto it = given_.find(name); it != given_.end())
        field_from_text(field, it->second, flag_name(name));
    });
    if constexpr (requires { config.optimizer; }) apply_betas(config);
  }

 private:
  // Some optimizers have different default betas.
  void apply_betas(C& config) const {
    const auto& betas = known_optimizers[size_t(config.optimizer)].betas;
    if (betas && !given("beta1")) config.beta1 = (*betas)[0];
    if (betas && !given("beta2")) config.beta2 = (*betas)[1];
  }

  template <class T>
  static std::string default_text(const T& field) {
    if constexpr (std::is_enum_v<T>)
      return std::string(enum_name(field));
    else if constexpr (std::is_same_v<T, bool>)
      return field ? "true" : "false";
    else if constexpr (std::is_same_v<T, std::string>)
      return field;
    else if constexpr (std::is_same_v<T, std::vector<std::string>>)
      return "";
    else
      return fmt::format("{}", field);
  }

  std::map<std::string, std::vector<std::string>> given_;
};

}  // namespace hearth::inline cli
