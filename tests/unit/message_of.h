// The message of the Error that a body throws, or "no error".
#pragma once

#include <functional>
#include <string>

#include "sys/error.h"

namespace hearth {

inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) { return e.what(); }
  return "no error";
}

}  // namespace hearth
