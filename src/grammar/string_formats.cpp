#include "grammar/string_formats.h"

#include <fmt/format.h>

#include <map>
#include <vector>

namespace hearth::inline grammar {
namespace {

using Patterns = std::map<std::string, std::string>;

std::string ipv4() {
  const std::string byte = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  return byte + "(\\." + byte + "){3}";
}

// Of a host name.
std::string label() { return "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"; }

// Exact: days of months, leap years, hours up to 23. A time has a zone, as RFC 3339 demands. In a
// duration no unit between two others is left out, as its appendix A demands.
void add_times(Patterns& all) {
  const std::string day31 = "(0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])";
  const std::string day30 = "(0[469]|11)-(0[1-9]|[12]\\d|30)";
  const std::string leap =
      "(\\d\\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29";
  const std::string date =
      "(\\d{4}-(" + day31 + "|" + day30 + "|02-(0[1-9]|1\\d|2[0-8]))|" + leap + ")";
  const std::string time =
      "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
  const std::string n = "\\d{1,9}";
  const std::string minutes = n + "M(" + n + "S)?", months = n + "M(" + n + "D)?";
  const std::string clock = "T(" + n + "H(" + minutes + ")?|" + minutes + "|" + n + "S)";
  const std::string days = "(" + n + "Y(" + months + ")?|" + months + "|" + n + "D)";
  all["date"] = date;
  all["time"] = time;
  all["date-time"] = date + "T" + time;
  all["duration"] = "P(" + days + "(" + clock + ")?|" + clock + "|" + n + "W)";
}

// Eight groups, or :: for at least one of them; an IPv4 address may be written at the end.
std::string ipv6() {
  const std::string group = "[0-9a-fA-F]{1,4}", more = "(:" + group + ")";
  std::string all = group + more + "{7}|::(" + group + more + "{0,6})?|::([fF]{4}:)?" + ipv4();
  for (int before = 1; before < 7; ++before)
    all += fmt::format("|{}{}{{{}}}::({}{}{{0,{}}})?", group, more, before - 1, group, more,
                       6 - before);
  return all + "|" + group + more + "{6}::";
}

// RFC 3986 with a scheme, without user information: with an authority, or with a path that has
// none. Where the length of the string is bounded, parts need no bounds of their own.
std::string uri(bool bounded) {
  const auto text = [&](const char* further, int most) {
    return fmt::format("([A-Za-z0-9._~!$&'()*+,;=:@{}-]|%[0-9A-Fa-f]{{2}})", further) +
           (bounded ? "*" : fmt::format("{{0,{}}}", most));
  };
  const std::string port =
      "([1-9]\\d{0,3}|[1-5]\\d{4}|6[0-4]\\d{3}|65[0-4]\\d\\d|655[0-2]\\d|6553[0-5])";
  const std::string name =
      bounded ? "[A-Za-z0-9]+(-+[A-Za-z0-9]+)*" : "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?";
  const std::string names = name + "(\\." + name + ")" + (bounded ? "*" : "{0,6}");
  const std::string host = "(" + names + "|\\[(" + ipv6() + ")\\])", path = "/" + text("/", 300);
  return "[A-Za-z][A-Za-z0-9+.-]{0,15}:(//" + host + "(:" + port + ")?(" + path + ")?|//" + path +
         "|[A-Za-z0-9._~@-]" + text("/", 300) + ")(\\?" + text("/?", 200) + ")?(#" +
         text("/?", 64) + ")?";
}

const Patterns& patterns() {
  static const Patterns all = [] {
    Patterns p;
    add_times(p);
    p["uuid"] = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}";
    p["ipv4"] = ipv4();
    p["ipv6"] = ipv6();
    p["hostname"] = label() + "(\\." + label() + "){0,6}";
    p["email"] = "[A-Za-z0-9_+-]{1,24}(\\.[A-Za-z0-9_+-]{1,18}){0,2}@(" + label() +
                 "\\.){1,4}[a-z]([a-z0-9-]{0,30}[a-z0-9])?";
    p["uri"] = uri(false);
    return p;
  }();
  return all;
}

}  // namespace

const std::string* format_pattern(const std::string& format, bool bounded) {
  static const std::string bounded_uri = uri(true);
  if (format == "uri" && bounded) return &bounded_uri;
  const auto found = patterns().find(format);
  return found == patterns().end() ? nullptr : &found->second;
}

std::string known_formats() {
  std::vector<std::string> names;
  for (const auto& [name, pattern] : patterns()) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace hearth::inline grammar
