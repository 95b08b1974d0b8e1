// SFT where programs are dear: one shape serves the whole run, and what is learned is what a
// program for each shape learns.

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "served_folder.h"
#include "sys/files/files.h"
#include "test_io_support.h"
#include "train/examples/example_task.h"
#include "unit/wrapped_backend.h"

namespace hearth {
namespace {

using namespace test;
using nlohmann::json;

// A CPU that says what a card would, and counts the inputs of programs that it makes.
class FewPrograms final : public WrappedBackend {
 public:
  FewPrograms() : WrappedBackend(2) {}
  std::byte* allocate(int64_t n, const std::string& what) override {
    if (what.starts_with("examples ") && what.ends_with(".tokens")) shapes.insert(what);
    return WrappedBackend::allocate(n, what);
  }
  bool prefers_few_programs() const override { return few; }
  bool runs_ahead() const override { return true; }

  bool few = true;
  std::set<std::string> shapes;
};

std::vector<json> lines_of(const std::filesystem::path& file) {
  std::vector<json> lines;
  std::istringstream in(read_file(file));
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(Sft, OneShapeServesARunWhereProgramsAreDear) {
  const TempDir dir;
  write_served_folder(dir / "model");
  std::string data;
  for (int i = 0; i < 23; ++i)  // of many lengths, and not a whole number of batches
    data += json{{"prompt", std::string(size_t(1 + i % 5), 'q')},
                 {"completion", std::string(size_t(2 + 5 * i % 37), char('a' + i % 26))}}
                .dump() +
            "\n";
  write_file_atomic(dir / "data.jsonl", data);
  SftConfig c;
  c.model = (dir / "model").string(), c.data = {(dir / "data.jsonl").string()};
  c.max_length = 48, c.batch = 5, c.accumulate = 2, c.epochs = 2, c.lr = 1e-3, c.clock = 1;
  const auto trained = [&](const std::string& name, bool few) {
    FewPrograms backend;
    backend.few = few;
    RunSpec spec;
    spec.run = dir / name, spec.quiet = true;
    const RunResult r = sft(c, spec, backend);
    EXPECT_GT(r.seconds.value("first_steps", 0.0), 0);
    EXPECT_GE(r.seconds.value("total", 0.0), r.seconds.value("save", 0.0));
    return backend.shapes.size();
  };
  for (const SftPacking packing : {SftPacking::bfd, SftPacking::none}) {
    c.packing = packing;
    const std::string name = packing == SftPacking::none ? "-none" : "-bfd";
    EXPECT_EQ(trained("few" + name, true), 1u);
    const size_t shapes = trained("exact" + name, false);
    // Unpacked, the last batch is short, for one.
    EXPECT_GE(shapes, packing == SftPacking::none ? 2u : 1u);
    const std::vector<json> few = lines_of(dir / ("few" + name) / "log.jsonl");
    const std::vector<json> exact = lines_of(dir / ("exact" + name) / "log.jsonl");
    ASSERT_EQ(few.size(), exact.size());
    ASSERT_GE(few.size(), 4u);
    for (size_t i = 0; i < few.size(); ++i) {
      EXPECT_EQ(few[i]["targets"], exact[i]["targets"]);
      EXPECT_NEAR(few[i]["loss"].get<double>(), exact[i]["loss"].get<double>(), 1e-4) << i;
      EXPECT_NEAR(few[i]["grad_norm"].get<double>(), exact[i]["grad_norm"].get<double>(), 1e-3);
    }
  }
}

}  // namespace
}  // namespace hearth
