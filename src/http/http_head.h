// Converts the head of an HTTP request from Boost.Beast's parser to the fields that the server
// uses. Ambiguous framing (request smuggling) is rejected here.
#pragma once

#include <utility>  // Boost 1.74 needs it and does not include it

#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/parser.hpp>
#include <optional>
#include <string>

#include "http/config.h"
#include "http/http.h"

namespace hearth::inline http {

// A body that allocates memory as it arrives; Beast's string_body reserves the announced size.
struct ArrivingBody {
  using value_type = std::string;
  static uint64_t size(const value_type& body) { return body.size(); }

  class reader {
   public:
    template <bool is_request, class Fields>
    reader(boost::beast::http::header<is_request, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, boost::system::error_code& e) { e = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& e) {
      e = {};
      const size_t before = body_.size();
      for (const boost::asio::const_buffer b : boost::beast::buffers_range_ref(buffers))
        body_.append(static_cast<const char*>(b.data()), b.size());
      return body_.size() - before;
    }
    void finish(boost::system::error_code& e) { e = {}; }

   private:
    value_type& body_;
  };
};

using RequestParser = boost::beast::http::request_parser<ArrivingBody>;

struct RequestHead {
  HttpRequest request = {};             // without its body
  std::optional<uint64_t> length = {};  // of the body; absent if chunked
  bool http11 = false, expects_continue = false;
};

void set_limits(RequestParser&, const HttpConfig&);
// For a parser that has read a head. Throws HttpError 400.
RequestHead read_head(const RequestParser&);
// The answer to a request that the parser rejected.
HttpError read_error(const boost::system::error_code&);

}  // namespace hearth::inline http
