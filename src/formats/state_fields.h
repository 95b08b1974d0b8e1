// Reads the fields of a JSON state file one by one and checks the range of each. An error names the
// file, the field and the range; values that pass are safe to use.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace hearth::inline formats {

class StateFields {
 public:
  static constexpr int64_t max_count = int64_t(1)
                                       << 53;  // small enough that sums of counts cannot overflow

  // `where` is the file; `name`, for example "run", is the prefix of field names in errors. The
  // JSON must outlive this object.
  StateFields(const nlohmann::json&, std::string where, std::string name = {});

  bool has(const std::string& key) const;  // present and not null
  int64_t integer(const std::string& key, int64_t least = 0, int64_t most = max_count) const;
  double number(const std::string& key, double least = std::numeric_limits<double>::lowest(),
                double most = std::numeric_limits<double>::max()) const;
  bool boolean(const std::string& key) const;
  std::string text(const std::string& key) const;
  std::string sha256(const std::string& key) const;  // 64 hexadecimal digits
  StateFields object(const std::string& key) const;
  const nlohmann::json& value(const std::string& key) const;  // of any type

  // Lists of at most `size` entries.
  std::vector<int64_t> integers(const std::string& key, size_t size, int64_t least = 0,
                                int64_t most = max_count) const;
  std::vector<double> numbers(const std::string& key, size_t size) const;
  std::vector<StateFields> objects(const std::string& key, size_t size) const;

  // Throws "[where] expected name.key to be `wanted`, got `got`".
  [[noreturn]] void refuse(const std::string& key, std::string_view wanted,
                           const nlohmann::json& got) const;

 private:
  std::string named(const std::string& key) const;
  const nlohmann::json& list(const std::string& key, size_t size) const;
  int64_t checked_integer(const nlohmann::json&, const std::string& key, int64_t least,
                          int64_t most) const;
  double checked_number(const nlohmann::json&, const std::string& key, double least,
                        double most) const;

  const nlohmann::json& object_;
  std::string where_, name_;
};

// A state struct lists its fields once, in `visit(state, v)`, which calls v(name, field, range...)
// for each. The two functions below write a state and read it back. A range may depend on the
// fields before it. A number has to be there; an optional value, a bool or JSON keeps its default
// in a state that lacks it.
struct StateReader {
  const StateFields& from;
  void operator()(const char* name, int64_t& x, int64_t least = 0,
                  int64_t most = StateFields::max_count) const {
    x = from.integer(name, least, most);
  }
  void operator()(const char* name, uint64_t& x) const { x = uint64_t(from.integer(name)); }
  void operator()(const char* name, double& x, double least = std::numeric_limits<double>::lowest(),
                  double most = std::numeric_limits<double>::max()) const {
    x = from.number(name, least, most);
  }
  void operator()(const char* name, std::optional<double>& x) const {
    if (from.has(name)) x = from.number(name);
  }
  void operator()(const char* name, std::vector<double>& x, size_t size) const {
    x = from.numbers(name, size);
  }
  void operator()(const char* name, bool& x) const {
    if (from.has(name)) x = from.boolean(name);
  }
  void operator()(const char* name, nlohmann::json& x) const {
    if (from.has(name)) x = from.value(name);
  }
};

template <class S>
nlohmann::json state_to_json(const S& state) {
  nlohmann::json j;
  S::visit(state, [&](const char* name, const auto& field, auto...) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, std::optional<double>>)
      j[name] = field ? nlohmann::json(*field) : nlohmann::json();
    else
      j[name] = field;
  });
  return j;
}

template <class S>
S state_from_json(const StateFields& from) {
  S state;
  S::visit(state, StateReader{from});
  return state;
}

}  // namespace hearth::inline formats
