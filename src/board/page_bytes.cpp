// Embeds the files of web/dist with the assembler's .incbin: a C++ array of their size would take a
// compiler seconds. CMake defines HEARTH_WEB_DIST and compiles this file on its own.
#include "board/page_bytes.h"

#define HEARTH_EMBED(NAME, FILE)                                   \
  asm(".pushsection .rodata\n"                                     \
      ".globl hearth_page_" NAME "\n.hidden hearth_page_" NAME     \
      "\n"                                                         \
      ".globl hearth_page_" NAME "_end\n.hidden hearth_page_" NAME \
      "_end\n"                                                     \
      "hearth_page_" NAME ":\n.incbin \"" HEARTH_WEB_DIST "/" FILE \
      "\"\n"                                                       \
      "hearth_page_" NAME                                          \
      "_end:\n.byte 0\n"                                           \
      ".popsection\n")

HEARTH_EMBED("index_html", "index.html");
HEARTH_EMBED("app_js", "app.js");
HEARTH_EMBED("app_css", "app.css");

extern "C" {
extern const char hearth_page_index_html[], hearth_page_index_html_end[];
extern const char hearth_page_app_js[], hearth_page_app_js_end[];
extern const char hearth_page_app_css[], hearth_page_app_css_end[];
}

namespace hearth::inline board {

std::string_view page_index_html() { return {hearth_page_index_html, hearth_page_index_html_end}; }
std::string_view page_app_js() { return {hearth_page_app_js, hearth_page_app_js_end}; }
std::string_view page_app_css() { return {hearth_page_app_css, hearth_page_app_css_end}; }

}  // namespace hearth::inline board
