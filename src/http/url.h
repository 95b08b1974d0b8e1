// Parts of a request's target: percent-encoded text and the values of a query.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hearth::inline http {

// Nothing if an escape is incomplete or stands for a zero byte.
std::optional<std::string> percent_decoded(std::string_view);

// The decoded value of `name` in "a=1&name=x"; nothing if it is absent. A "+" is a space. Throws
// HttpError 400 for a wrong escape.
std::optional<std::string> query_value(std::string_view query, std::string_view name);

// A number in a query within these bounds, or `otherwise` if it is absent; 400 if it is wrong.
double query_number(std::string_view query, std::string_view name, double otherwise, double low,
                    double high);

}  // namespace hearth::inline http
