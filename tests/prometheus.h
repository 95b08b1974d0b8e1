// A strict parser of Prometheus' text format: what it accepts, any scraper accepts. A violation
// throws a std::runtime_error with the line.
#pragma once

#include <cmath>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace hearth {

class Prometheus {
 public:
  explicit Prometheus(const std::string& text) {
    require(!text.empty() && text.back() == '\n', "a last line that ends", text);
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);)
      line.starts_with("#") ? heading(line) : sample(line);
    for (const auto& [name, type] : types_)
      if (type == "histogram") require(buckets_.contains(name), "buckets", name);
    for (const auto& [name, series] : buckets_)
      for (const auto& [labels, buckets] : series) check_histogram(name, labels, buckets);
  }

  // The value of a series whose name is `name` and whose labels contain `part`.
  double value(const std::string& name, const std::string& part = "") const {
    for (const auto& [series, value] : values_)
      if (series.substr(0, series.find('{')) == name && series.find(part) != series.npos)
        return value;
    throw std::runtime_error("no series " + name + " with " + part);
  }
  const std::map<std::string, std::string>& types() const { return types_; }

 private:
  static void require(bool ok, const std::string& expected, const std::string& line) {
    if (!ok) throw std::runtime_error("expected " + expected + ", got: " + line);
  }

  void heading(const std::string& line) {
    static const std::regex shape("# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)");
    std::smatch m;
    require(std::regex_match(line, m, shape), "# HELP or # TYPE", line);
    if (m[1] == "HELP") {
      require(helps_.insert(m[2]).second, "one HELP a family", line);
      family_ = m[2];
      return;
    }
    static const std::set<std::string> known{"counter", "gauge", "histogram", "summary", "untyped"};
    require(known.contains(m[3]), "a known type", line);
    require(m[2] == family_, "the family its HELP named", line);
    require(types_.emplace(m[2], m[3]).second, "one TYPE a family", line);
  }

  void sample(const std::string& line) {
    static const std::string label = R"([a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*")";
    static const std::regex shape("([a-zA-Z_:][a-zA-Z0-9_:]*)(\\{" + label + "(?:," + label +
                                  ")*\\})? (\\S+)");
    std::smatch m;
    require(std::regex_match(line, m, shape), "name{labels} value", line);
    const std::string name = m[1];
    require(types_.contains(family_), "a TYPE before its samples", line);
    const std::string type = types_.at(family_);
    const bool part =
        type == "histogram" &&
        (name == family_ + "_bucket" || name == family_ + "_sum" || name == family_ + "_count");
    require(type == "histogram" ? part : name == family_, "a sample of " + family_, line);
    size_t used = 0;
    const std::string number = m[3];
    const double value =
        number == "+Inf" ? std::numeric_limits<double>::infinity() : std::stod(number, &used);
    require(number == "+Inf" || used == number.size(), "a number", line);
    require(type == "gauge" || value >= 0, "a count of at least 0", line);
    require(values_.emplace(name + std::string(m[2]), value).second, "each series once", line);
    if (name == family_ + "_bucket") bucket(line, m[2], value);
  }

  // The buckets of a series have its labels and `le`, the last.
  void bucket(const std::string& line, const std::string& labels, double value) {
    static const std::regex shape(R"re(\{((?:.|\n)*?),?le="([^"]+)"\})re");
    std::smatch m;
    require(std::regex_match(labels, m, shape), "a bucket with le", line);
    const double bound = m[2] == "+Inf" ? std::numeric_limits<double>::infinity() : std::stod(m[2]);
    buckets_[family_][m[1].length() ? "{" + std::string(m[1]) + "}" : ""].emplace_back(bound,
                                                                                       value);
  }

  using Buckets = std::vector<std::pair<double, double>>;  // bounds and counts
  void check_histogram(const std::string& name, const std::string& labels,
                       const Buckets& buckets) const {
    for (size_t i = 1; i < buckets.size(); ++i) {
      require(buckets[i - 1].first < buckets[i].first, "bounds that grow", name);
      require(buckets[i - 1].second <= buckets[i].second, "counts that add up", name);
    }
    require(std::isinf(buckets.back().first), "a last bucket of +Inf", name);
    const auto found = [&](const std::string& series) {
      require(values_.contains(series), "the series", series);
      return values_.at(series);
    };
    require(buckets.back().second == found(name + "_count" + labels), "a count of all", name);
    require(std::isfinite(found(name + "_sum" + labels)), "a sum", name);
  }

  std::string family_;
  std::set<std::string> helps_;
  std::map<std::string, std::string> types_;
  std::map<std::string, double> values_;
  std::map<std::string, std::map<std::string, Buckets>> buckets_;  // by family and labels
};

}  // namespace hearth
