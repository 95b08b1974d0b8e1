#include "tasks/arithmetic/arithmetic.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "data/permutation.h"
#include "sys/error.h"
#include "sys/files/files.h"

namespace hearth::inline tasks {
namespace {

struct Operation {
  int64_t a, b;
  char op;
  auto operator<=>(const Operation&) const = default;
  int64_t result() const { return op == '+' ? a + b : op == '-' ? a - b : a * b; }
};

// Random numbers from a counter: equal on every machine.
struct Draws {
  uint64_t seed, count = 0;
  uint64_t below(uint64_t n) { return mix64(mix64(seed) ^ ++count) % n; }
};

// Hashes both orders of commutative operations, because 34+12 answers 12+34.
bool is_held_out(const Operation& o, double share) {
  const auto [low, high] = std::minmax(o.a, o.b);
  const uint64_t h = mix64(mix64(mix64(uint64_t(low)) ^ uint64_t(high)) ^ uint64_t(o.op));
  return double(h >> 11) * 0x1p-53 < share;
}

int64_t power_of_ten(int n) {
  int64_t p = 1;
  while (n-- > 0) p *= 10;
  return p;
}

std::vector<Operation> choose_operations(const ArithmeticSpec& s, Draws& draws) {
  const int64_t low = s.digits == 1 ? 0 : power_of_ten(s.digits - 1), high = power_of_ten(s.digits);
  const int64_t span = high - low, ops = int64_t(s.ops.size());
  const auto ordered = [](Operation o) {
    if (o.op == '-' && o.a < o.b) std::swap(o.a, o.b);
    return o;
  };
  std::set<Operation> chosen;
  const bool all = s.problems == 0;
  if (all && s.digits > 2)
    fail_usage(
        "problems",
        "expected a number of problems for {} digits, got 0 (all), which is allowed up to 2 digits",
        s.digits);
  // At most half of all pairs, so that drawing stays fast. a - b and b - a give the same
  // difference.
  if (!all && s.problems > span * span * ops / 4)
    fail_usage("problems", "expected at most {} (or 0: all), got {}", span * span * ops / 4,
               s.problems);
  if (all)
    for (const char op : s.ops)
      for (int64_t a = low; a < high; ++a)
        for (int64_t b = low; b < high; ++b) chosen.insert(ordered({a, b, op}));
  while (!all && int64_t(chosen.size()) < s.problems) {
    const auto number = [&] { return low + int64_t(draws.below(uint64_t(span))); };
    const int64_t a = number(), b = number();
    chosen.insert(ordered({a, b, s.ops[size_t(draws.below(uint64_t(ops)))]}));
  }
  const std::vector<Operation> sorted(chosen.begin(), chosen.end());
  const Permutation order(sorted.size(), s.seed, 0);
  std::vector<Operation> shuffled;
  for (uint64_t i = 0; i < sorted.size(); ++i) shuffled.push_back(sorted[size_t(order(i))]);
  return shuffled;
}

template <size_t N>
std::string_view one_of(const std::array<std::string_view, N>& list, Draws& draws) {
  return list[size_t(draws.below(N))];
}

std::string question(const Operation& o, Draws& draws) {
  static constexpr auto names = std::to_array<std::string_view>(
      {"Anna", "Ben", "Carla", "David", "Elif", "Farid", "Grace", "Hugo", "Ines", "Jonas"});
  static constexpr auto things =
      std::to_array<std::string_view>({"apples", "books", "coins", "pencils", "stamps", "shells",
                                       "cards", "stones", "eggs", "nuts"});
  const std::string_view who = one_of(names, draws), what = one_of(things, draws);
  const bool second = draws.below(2) == 1;
  if (o.op == '+')
    return second ? fmt::format(
                        "There are {} {} in one box and {} in another. How many {} are there "
                        "in both?",
                        o.a, what, o.b, what)
                  : fmt::format("{} has {} {} and gets {} more. How many {} does {} have now?", who,
                                o.a, what, o.b, what, who);
  if (o.op == '-')
    return second
               ? fmt::format("Of {} {}, {} are lost. How many {} are left?", o.a, what, o.b, what)
               : fmt::format("{} has {} {} and gives {} away. How many {} does {} keep?", who, o.a,
                             what, o.b, what, who);
  return second ? fmt::format("Each of {} bags holds {} {}. How many {} are there?", o.a, o.b, what,
                              what)
                : fmt::format("{} fills {} boxes with {} {} each. How many {} does {} need?", who,
                              o.a, o.b, what, what, who);
}

// A wrong answer: off by one, or with a forgotten carry.
std::string slip(const Operation& o, Draws& draws) {
  static constexpr int64_t offs[] = {-10, -1, 1, 10};
  const int64_t off = offs[draws.below(4)];
  return std::to_string(o.result() + (o.result() + off < 0 ? -off : off));
}

Problem problem(const Operation& o, bool words, Draws& draws) {
  const std::string answer = std::to_string(o.result()), wrong = slip(o, draws);
  if (!words) return {fmt::format("{}{}{}=", o.a, o.op, o.b), answer, answer, wrong};
  return {fmt::format("Question: {}\nAnswer:", question(o, draws)), " " + answer, answer,
          " " + wrong};
}

void check_arithmetic(const ArithmeticSpec& s) {
  if (s.digits < 1 || s.digits > 6) fail_usage("digits", "expected 1 to 6, got {}", s.digits);
  if (s.ops.empty() || s.ops.find_first_not_of("+-*") != s.ops.npos ||
      std::set<char>(s.ops.begin(), s.ops.end()).size() != s.ops.size())
    fail_usage("ops", "expected one or more of + - *, each once, got \"{}\"", s.ops);
  if (!(s.held_out >= 0 && s.held_out < 1))
    fail_usage("held_out", "expected a fraction in [0, 1), got {}", s.held_out);
  if (s.problems < 0) fail_usage("problems", "expected 0 or more, got {}", s.problems);
}

}  // namespace

ArithmeticSet make_arithmetic(const ArithmeticSpec& s) {
  check_arithmetic(s);
  Draws draws{s.seed};
  ArithmeticSet set;
  for (const Operation& o : choose_operations(s, draws))
    (is_held_out(o, s.held_out) ? set.held_out : set.train).push_back(problem(o, s.words, draws));
  return set;
}

void write_arithmetic(const std::filesystem::path& folder, const ArithmeticSet& set) {
  using nlohmann::ordered_json;
  make_dirs(folder);
  const auto write = [&](const char* name, const std::vector<Problem>& problems, auto line) {
    AtomicFile file(folder / name);
    for (const Problem& p : problems) file.write(to_bytes(line(p) + "\n"));
    file.commit();
  };
  const auto text = [](const Problem& p) { return p.prompt + p.completion + "\n<|endoftext|>"; };
  write("pretrain.txt", set.train, text);
  write("sft.jsonl", set.train, [](const Problem& p) {
    return ordered_json{{"prompt", p.prompt}, {"completion", p.completion}}.dump();
  });
  write("preferences.jsonl", set.train, [](const Problem& p) {
    return ordered_json{{"prompt", p.prompt}, {"chosen", p.completion}, {"rejected", p.wrong}}
        .dump();
  });
  write("prompts.jsonl", set.train, [](const Problem& p) {
    return ordered_json{{"prompt", p.prompt}, {"answer", p.answer}}.dump();
  });
  write("heldout.txt", set.held_out, text);
  write("heldout.jsonl", set.held_out, [](const Problem& p) {
    return ordered_json{{"prompt", p.prompt}, {"completion", p.completion}, {"answer", p.answer}}
        .dump();
  });
}

}  // namespace hearth::inline tasks
