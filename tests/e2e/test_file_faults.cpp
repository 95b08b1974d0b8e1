// Kills a short run of every task at each call that changes a file of its folder, resumes it, and
// compares the folder with that of a run that nothing happened to: weights, logs, links and the
// checkpoints kept. A preloaded library (faults/file_faults.cpp) counts the calls.
//   HEARTH_FAULT_STRIDE=1   every call; N: every N-th, beginning at another one each day
//   HEARTH_FAULT_FIRST=K    the first call, instead of the day's
#include <chrono>
#include <map>
#include <regex>
#include <set>

#include "e2e/short_runs.h"
#include "formats/checkpoint_dir.h"
#include "formats/json.h"

namespace hearth {
namespace {

using nlohmann::json;

int number_from(const char* variable, int otherwise) {
  const char* text = getenv(variable);
  return text ? atoi(text) : otherwise;
}

// State but for the seconds that it took.
std::string without_times(const fs::path& trainer) {
  json j = read_json(trainer);
  for (const char* key : {"train_seconds", "seconds"}) j["run"].erase(key);
  return j.dump();
}

// Every entry of a run folder by name: a file's bytes, or where a link leads. What holds times or
// names a process is left out: perf.jsonl, TensorBoard's events, the lock, and the manifests, whose
// sums cover the state's seconds.
std::map<std::string, std::string> contents_of(const fs::path& run) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(run)) {
    const fs::path name = entry.path().lexically_relative(run);
    if (*name.begin() == "tensorboard" || name == "perf.jsonl" || name == ".lock" ||
        name.filename() == "manifest.json")
      continue;
    std::string& content = all[name.string()];
    if (entry.is_symlink())
      content = "-> " + fs::read_symlink(entry.path()).string();
    else if (name.filename() == "trainer.json")
      content = without_times(entry.path());
    else if (entry.is_regular_file())
      content = read_file(entry.path());
  }
  return all;
}

// The names whose contents differ, or that only one has.
std::string differences(const std::map<std::string, std::string>& a,
                        const std::map<std::string, std::string>& b) {
  std::string text;
  for (const auto& [name, content] : a) {
    const auto it = b.find(name);
    if (it == b.end())
      text += " " + name + " is missing;";
    else if (it->second != content)
      text += " " + name + " differs" +
              (content.size() < 60 ? " (" + content + " became " + it->second + ");" : ";");
  }
  for (const auto& [name, content] : b)
    if (!a.contains(name)) text += " " + name + " is new;";
  return text;
}

// What the preloaded library is to do, for the programs started while this lives.
class Faults {
 public:
  Faults(const Folder& folder, const fs::path& run, int at, const std::string& what) {
    set("LD_PRELOAD", HEARTH_FILE_FAULTS);
    set("HEARTH_FAULT_UNDER", run.string());
    set("HEARTH_FAULT_LOG", folder / "calls");
    set("HEARTH_FAULT_AT", std::to_string(at));
    set("HEARTH_FAULT", what);
  }
  ~Faults() {
    for (const std::string& name : names_) unsetenv(name.c_str());
  }
  Faults(const Faults&) = delete;

 private:
  void set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    names_.push_back(name);
  }
  std::vector<std::string> names_;
};

class FileFaults : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!ShortRuns::can_run(GetParam())) GTEST_SKIP() << "built without PCRE2";
    ASSERT_EQ(hearth::run(folder, arguments(folder / "whole")).status, 0)
        << read_file(folder / "run.err");
    whole = contents_of(folder / "whole");
    const fs::path best = fs::read_symlink(folder / "whole/best").filename();
    ASSERT_NE(best, fs::read_symlink(folder / "whole/latest").filename())
        << "the best checkpoint should be an older one, which rotation must spare";
    std::set<std::string> kept;
    for (const auto& entry : fs::directory_iterator(folder / "whole/checkpoints"))
      kept.insert(entry.path().filename());
    ASSERT_EQ(kept.size(), 3u) << "two by --keep, and the best";
    for (const std::string& step : kept)
      ASSERT_EQ(whole.contains("checkpoints/" + step + "/state/optimizer.safetensors"),
                step != best)
          << step << ": only the best, which no run goes on from, keeps its weights alone";
  }

  Arguments arguments(const fs::path& run) const {
    return runs.arguments(GetParam(), run) + Arguments{"--resume"};
  }
  Ran run_with(int at, const std::string& what) {
    const Faults faults(folder, broken, at, what);
    return hearth::run(folder, arguments(broken));
  }
  void expect_whole_after_resume(const std::string& story) {
    const Ran r = hearth::run(folder, arguments(broken));
    EXPECT_EQ(r.status, 0) << story << ": " << r.err;
    EXPECT_EQ(differences(whole, contents_of(broken)), "") << story;
    for (const auto& entry : fs::directory_iterator(broken / "checkpoints"))
      EXPECT_EQ(verify_checkpoint(entry.path()), std::nullopt) << story << ": " << entry.path();
  }
  std::vector<std::string> calls_made() const {
    std::vector<std::string> lines;
    std::ifstream file(folder / "calls");
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  std::string call(int at) const {
    const std::vector<std::string> calls = calls_made();
    return "call " + std::to_string(at) + ", " +
           (calls.size() < size_t(at) ? "none" : calls[size_t(at - 1)]);
  }

  // Does `body(k)` for every stride-th call until one beyond the last, when body returns false.
  template <class Body>
  void for_each_call(int stride, Body body) {
    using std::chrono::system_clock, std::chrono::hours;
    stride = number_from("HEARTH_FAULT_STRIDE", stride);
    const auto day = system_clock::now().time_since_epoch() / hours(24);
    int first = number_from("HEARTH_FAULT_FIRST", int(day % stride) + 1), points = 0;
    for (int k = first; !HasFailure() && body(k); k += stride) {
      ++points;
      fs::remove_all(broken);
    }
    std::printf("%d points, from call %d by %d\n", points, first, stride);
    EXPECT_GT(points, 0);
  }

  const ShortRuns runs;
  const Folder& folder = runs.folder;
  const fs::path broken = folder / "broken";
  std::map<std::string, std::string> whole;
};

TEST_P(FileFaults, AKilledRunIsResumedToTheSameFolder) {
  for_each_call(37, [&](int k) {
    if (run_with(k, "kill").status == 0) return false;
    expect_whole_after_resume("killed at " + call(k));
    return true;
  });
}

TEST_P(FileFaults, AWriteCutInHalfIsMended) {
  for_each_call(61, [&](int k) {
    if (run_with(k, "tear").status == 0) return false;
    expect_whole_after_resume("killed within " + call(k));
    return true;
  });
}

// The resumed run is killed too, at one of its first calls or a later one.
TEST_P(FileFaults, AKilledResumeIsResumed) {
  for_each_call(53, [&](int k) {
    if (run_with(k, "kill").status == 0) return false;
    const std::string first = call(k);
    const int j = 1 + (k * 7) % 60;
    run_with(j, "kill");
    expect_whole_after_resume("killed at " + first + ", then at " + call(j));
    return true;
  });
}

// A call that fails ends the run with one line that says so, or does not matter.
TEST_P(FileFaults, AFailedCallIsOneLineAndIsResumed) {
  for_each_call(59, [&](int k) {
    const Ran r = run_with(k, k % 2 ? "ENOSPC" : "EIO");
    if (calls_made().size() < size_t(k)) return false;
    if (r.status != 0) {
      const size_t last = r.err.rfind("hearth: ");
      EXPECT_EQ(r.status, 1) << call(k);
      EXPECT_TRUE(std::regex_search(r.err.substr(std::min(last, r.err.size())),
                                    std::regex("^hearth: \\[.*(No space left|Input/output).*\n$")))
          << call(k) << ": " << r.err;
    }
    expect_whole_after_resume("failed at " + call(k));
    return true;
  });
}

INSTANTIATE_TEST_SUITE_P(Tasks, FileFaults, testing::Values("pretrain", "sft", "dpo", "grpo"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace hearth
