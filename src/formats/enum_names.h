// HEARTH_ENUM_NAMES(E, {"first", "second"}) gives an enum the function names_of(E), by which flags,
// files and errors name its enumerators, in order.
#pragma once

#include <array>
#include <span>
#include <string_view>

#define HEARTH_ENUM_NAMES(E, ...)                                               \
  inline std::span<const std::string_view> names_of(E) {                        \
    static constexpr auto names = std::to_array<std::string_view>(__VA_ARGS__); \
    return names;                                                               \
  }
