// The files of web/dist, embedded in the program by page_bytes.cpp.
#pragma once

#include <string_view>

namespace hearth::inline board {

std::string_view page_index_html();
std::string_view page_app_js();
std::string_view page_app_css();

}  // namespace hearth::inline board
