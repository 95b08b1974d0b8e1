// The head of an HTTP request, from Boost.Beast's parser to the fields the server looks at. Framing
// that two readers could understand differently (request smuggling) is refused here.
#pragma once

#include <utility>  // Boost 1.74 needs it and does not include it

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>

#include "serve/config.h"
#include "serve/http.h"

namespace hearth {

using RequestParser = boost::beast::http::request_parser<boost::beast::http::string_body>;

struct RequestHead {
  HttpRequest request = {};             // without its body
  std::optional<uint64_t> length = {};  // of the body; absent where it comes in chunks
  bool http11 = false, expects_continue = false;
};

void set_limits(RequestParser&, const ServeConfig&);
// Of a parser that has read a head. Throws HttpError, 400.
RequestHead read_head(const RequestParser&);
// The answer to a request that the parser refused.
HttpError read_error(const boost::system::error_code&);

}  // namespace hearth
