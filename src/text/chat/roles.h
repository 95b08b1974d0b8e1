// Roles of messages, as chat templates and clients know them.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace hearth::inline text {

constexpr std::array<std::string_view, 5> message_roles = {"system", "developer", "user",
                                                           "assistant", "tool"};
bool is_message_role(std::string_view);
// "; did you mean user?" if an unknown role resembles one of these or is another program's name for
// it; else empty.
std::string suggested_role(std::string_view unknown);

}  // namespace hearth::inline text
