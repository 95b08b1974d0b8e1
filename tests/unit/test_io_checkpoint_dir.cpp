// Checkpoint folders: whole or absent, verified, rotated, and still there after SIGKILL.
#include "formats/checkpoint_dir.h"

#include <poll.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include "formats/json.h"
#include "test_io_support.h"

namespace hearth::test {
namespace {

namespace fs = std::filesystem;

// Contents that depend on the step, so that a mixture of two steps would be seen.
void save(const fs::path& parent, int64_t step, size_t size = 1000) {
  CheckpointWriter w(parent, step_name(step));
  const std::string weights(size, char('a' + step % 26));
  write_file_atomic(w.path("model.safetensors"), weights);
  w.add({"model.safetensors", weights.size(), sha256_hex(to_bytes(weights))});
  write_file_atomic(w.path("state/optimizer.bin"), weights + "state");
  w.commit();
}

std::string problem(const fs::path& dir) { return verify_checkpoint(dir).value_or(""); }

void flip_bit(const fs::path& path, size_t byte) {
  std::string text = read_file(path);
  text.at(byte) = char(text.at(byte) ^ 4);
  std::ofstream(path, std::ios::binary) << text;
}

TEST(IoCheckpoint, CommitMakesAVerifiedFolder) {
  const TempDir dir;
  save(dir / "run/checkpoints", 1000);
  const fs::path made = dir / "run/checkpoints/step-00001000";
  EXPECT_EQ(problem(made), "");
  EXPECT_EQ(names_in(dir / "run/checkpoints"), 1);
  EXPECT_EQ(read_file(made / "state/optimizer.bin").size(), 1005u);
  const auto files = parse_manifest(read_file(made / "manifest.json"), "manifest").files;
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[1].file, "state/optimizer.bin");
  EXPECT_EQ(files[1].sha256, digest_file(made, "state/optimizer.bin").sha256);
}

TEST(IoCheckpoint, WithoutCommitNothingRemains) {
  const TempDir dir;
  {
    CheckpointWriter w(dir.path(), "step-00000001");
    write_file_atomic(w.path("a/b/c"), "x");
    EXPECT_EQ(names_in(dir.path()), 1);
    for (const auto* bad : {"/etc/x", "../x", "a/../../x", "", "a//b/", "manifest.json"}) {
      EXPECT_NE(error_of([&] { w.path(bad); }), "") << bad;
    }
  }
  EXPECT_EQ(names_in(dir.path()), 0);
}

TEST(IoCheckpoint, AnnouncedFilesMustBeThere) {
  const TempDir dir;
  CheckpointWriter absent(dir.path(), "a"), shorter(dir.path(), "b");
  absent.add({"x", 1, std::string(64, '0')});
  expect_error(error_of([&] { absent.commit(); }), "announced but not written");
  write_file_atomic(shorter.path("x"), "12");
  shorter.add({"x", 3, std::string(64, '0')});
  expect_error(error_of([&] { shorter.commit(); }), "expected 3 bytes, got 2");
}

TEST(IoCheckpoint, SavingAStepAgainReplacesIt) {
  const TempDir dir;
  save(dir.path(), 5, 10);
  flip_bit(dir / "step-00000005/model.safetensors", 0);
  write_file_atomic(dir / "step-00000005/extra", "x");
  save(dir.path(), 5, 20);
  EXPECT_EQ(problem(dir / "step-00000005"), "");
  EXPECT_EQ(read_file(dir / "step-00000005/model.safetensors").size(), 20u);
  EXPECT_FALSE(fs::exists(dir / "step-00000005/extra"));
  EXPECT_EQ(names_in(dir.path()), 1);
}

TEST(IoCheckpoint, VerifySaysWhatIsWrong) {
  const TempDir dir;
  const fs::path made = dir / "step-00000001", model = made / "model.safetensors";
  const auto broken = [&](const std::function<void()>& breakage) {
    save(dir.path(), 1);
    EXPECT_EQ(problem(made), "");
    breakage();
    return problem(made);
  };
  expect_error(broken([&] { fs::remove(model); }), "model.safetensors is missing");
  expect_error(broken([&] { fs::resize_file(model, 999); }), "has 999 bytes instead of 1000");
  expect_error(broken([&] { fs::resize_file(model, 1001); }), "has 1001 bytes");
  expect_error(broken([&] { flip_bit(model, 500); }), "differs from its SHA-256");
  expect_error(broken([&] { flip_bit(made / "state/optimizer.bin", 1004); }),
               "state/optimizer.bin");
  expect_error(broken([&] { fs::remove(made / "manifest.json"); }), "No such file");
  expect_error(broken([&] { fs::resize_file(made / "manifest.json", 60); }), "valid JSON");
  EXPECT_NE(problem(dir / "absent"), "");
}

TEST(IoCheckpoint, ManifestTruncatedOrFlippedNeverPassesForAnother) {
  const TempDir dir(memory_dir());
  save(dir.path(), 1);
  const std::string text = read_file(dir / "step-00000001/manifest.json");
  const auto good = parse_manifest(text, "m").files;
  for (size_t n = 0; n + 1 < text.size(); ++n) {
    EXPECT_NE(error_of([&] { parse_manifest(text.substr(0, n), "m"); }), "") << n;
  }
  for (size_t bit = 0; bit < 8 * text.size(); bit += 3) {
    std::string flipped = text;
    flipped[bit / 8] = char(flipped[bit / 8] ^ (1 << bit % 8));
    std::ofstream(dir / "step-00000001/manifest.json", std::ios::binary) << flipped;
    if (problem(dir / "step-00000001") != "") continue;
    const auto same = parse_manifest(flipped, "m").files;  // only white space was hit
    ASSERT_EQ(same.size(), good.size()) << flipped;
    for (size_t i = 0; i < good.size(); ++i) {
      EXPECT_EQ(same[i].file, good[i].file);
      EXPECT_EQ(same[i].sha256, good[i].sha256);
    }
  }
}

TEST(IoCheckpoint, BadManifestIsOneError) {
  const std::string hash(64, 'a');
  const auto error = [&](const std::string& text) {
    return error_of([&] { parse_manifest(text, "manifest.json"); });
  };
  const auto with = [&](std::string_view file, std::string_view rest) {
    return error(fmt::format(R"({{"version":1,"files":{{{}:{{{}}}}}}})", in_quotes(file), rest));
  };
  const std::string fine = fmt::format(R"("size":1,"sha256":"{}")", hash);
  EXPECT_EQ(with("a/b", fine), "");
  expect_error(with("../a", fine), "relative path");
  expect_error(with("/a", fine), "relative path");
  expect_error(with("a/../b", fine), "relative path");
  expect_error(with("", fine), "relative path");
  expect_error(with(std::string("a\0b", 3), fine), "relative path");
  expect_error(with("a", R"("size":-1,"sha256":"aa")"), "size and sha256");
  expect_error(with("a", R"("size":1,"sha256":"AA")"), "size and sha256");
  expect_error(with("a", R"("size":1)"), "size and sha256");
  expect_error(error(R"({"version":2,"files":{}})"), "expected manifest version 1, got \"2\"");
  expect_error(error(R"({"files":{}})"), "version and files");
  expect_error(error(R"({"version":1,"files":[]})"), "version and files");
  expect_error(error("[]"), "version and files");
  const auto dropping = [&](std::string_view list) {
    return error(fmt::format(R"({{"version":1,"files":{{}},"dropped":{}}})", list));
  };
  EXPECT_EQ(dropping(R"(["a/b"])"), "");
  expect_error(dropping(R"(["../b"])"), "relative path");
  expect_error(dropping("[1]"), "relative path");
  expect_error(dropping(R"("a")"), "list of dropped files");
}

TEST(IoCheckpoint, StepNames) {
  EXPECT_EQ(step_name(1000), "step-00001000");
  EXPECT_EQ(parse_step_name("step-00001000"), 1000);
  EXPECT_EQ(parse_step_name(step_name(1'234'567'890)), 1'234'567'890);
  for (const auto* bad : {"step-1000", "step-0000100x", "step--0001000", "xstep-00001000", "step-",
                          "step-0000000000000000000", ".tmp-step-00001000-7"}) {
    EXPECT_EQ(parse_step_name(bad), std::nullopt) << bad;
  }
}

TEST(IoCheckpoint, NewestValidSkipsDamageAndSaysSo) {
  const TempDir dir;
  EXPECT_EQ(find_newest_valid(dir / "absent").dir, std::nullopt);
  for (const int64_t step : {1, 2, 3, 10}) save(dir.path(), step);
  save(dir.path(), 100'000'000);  // nine digits: newer as a number, not as text
  write_file_atomic(dir / "step-99999999", "a file, not a folder");
  EXPECT_EQ(find_newest_valid(dir.path()).dir, dir / "step-100000000");
  flip_bit(dir / "step-100000000/model.safetensors", 3);
  fs::remove(dir / "step-00000010/manifest.json");
  const FoundCheckpoint found = find_newest_valid(dir.path());
  EXPECT_EQ(found.dir, dir / "step-00000003");
  ASSERT_EQ(found.skipped.size(), 2u);
  EXPECT_EQ(found.skipped[0].dir, dir / "step-100000000");
  expect_error(found.skipped[0].reason, "SHA-256");
  EXPECT_EQ(found.skipped[1].dir, dir / "step-00000010");
}

TEST(IoCheckpoint, RotateKeepsTheLastAndTheNamed) {
  const TempDir dir;
  for (int64_t step = 1; step <= 6; ++step) save(dir.path(), step);
  write_file_atomic(dir / "notes", "x");
  make_dirs(dir / ".del-step-00000003/left");  // by a killed rotation
  rotate_checkpoints(dir.path(), 2, {step_name(1), step_name(6), step_name(77)});
  for (const int64_t step : {1, 5, 6}) EXPECT_EQ(problem(dir / step_name(step)), "");
  EXPECT_TRUE(fs::exists(dir / "notes"));
  EXPECT_EQ(names_in(dir.path()), 4);
}

TEST(IoCheckpoint, RotateTellsWhatIsSparedForItsNameAlone) {
  const TempDir dir;
  for (int64_t step = 1; step <= 6; ++step) save(dir.path(), step);
  const auto spared = rotate_checkpoints(dir.path(), 2, {step_name(1), step_name(5)}, 5);
  EXPECT_EQ(spared, std::vector<fs::path>{dir / step_name(1)});
  EXPECT_EQ(names_in(dir.path()), 4) << "1, 4 and 5, and 6, which does not count";
}

// A resumed run may evaluate and save the step again that it had ended with.
TEST(IoCheckpoint, AStepThatIsSavedAgainKeepsItsMark) {
  const TempDir dir;
  const fs::path parent = dir / "run/checkpoints";
  for (int64_t step = 1; step <= 3; ++step) save(parent, step);
  EXPECT_TRUE(keep_for_others(parent / step_name(1)));
  for (int64_t step = 1; step <= 2; ++step) save(parent, step);
  EXPECT_EQ(problem(parent / step_name(1)), "");
  rotate_checkpoints(parent, 1, {});
  EXPECT_TRUE(fs::exists(parent / step_name(1)));
  EXPECT_FALSE(fs::exists(parent / step_name(2)));
}

TEST(IoCheckpoint, RotateKeepsWhatAnotherRunReads) {
  const TempDir dir;
  const fs::path parent = dir / "run/checkpoints";
  for (int64_t step = 1; step <= 5; ++step) save(parent, step);
  EXPECT_TRUE(keep_for_others(parent / step_name(2)));
  EXPECT_TRUE(keep_for_others(parent / step_name(2))) << "twice";
  fs::create_directory_symlink(fs::path("checkpoints") / step_name(3), dir / "run/best");
  EXPECT_TRUE(keep_for_others(dir / "run/best"));
  EXPECT_TRUE(keep_for_others(parent / step_name(4) / "")) << "with a slash at its end";
  const auto spared = rotate_checkpoints(parent, 1, {});
  const std::vector<fs::path> others{parent / step_name(4), parent / step_name(3),
                                     parent / step_name(2)};
  EXPECT_EQ(spared, others);
  EXPECT_EQ(problem(parent / step_name(2)), "");
  EXPECT_EQ(names_in(parent), 4);
  // A folder that belongs to no run stays as it is.
  save(dir / "models", 1);
  EXPECT_TRUE(keep_for_others(dir / "models" / step_name(1)));
  EXPECT_FALSE(fs::exists(dir / "models" / step_name(1) / "kept"));
}

TEST(IoCheckpoint, DroppedFilesAreGoneAndTheRestIsWhole) {
  const TempDir dir;
  save(dir.path(), 1);
  const fs::path made = dir / step_name(1), state = made / "state/optimizer.bin";
  drop_files(made, "state/none");
  EXPECT_FALSE(has_dropped_files(made));
  drop_files(made, "state/optimizer");
  EXPECT_TRUE(has_dropped_files(made));
  EXPECT_FALSE(fs::exists(state));
  EXPECT_EQ(problem(made), "");
  EXPECT_EQ(verify_checkpoint(made, CheckpointFiles::model), std::nullopt);
  const std::string manifest = read_file(made / "manifest.json");
  EXPECT_EQ(parse_manifest(manifest, "m").dropped, std::vector<std::string>{"state/optimizer.bin"});

  // Killed before the file was deleted, then before the manifest was renamed.
  write_file_atomic(state, "left");
  EXPECT_EQ(problem(made), "");
  drop_files(made, "state/optimizer");
  EXPECT_FALSE(fs::exists(state));
  EXPECT_EQ(read_file(made / "manifest.json"), manifest);
  save(dir.path(), 2);
  write_file_atomic(dir / step_name(2) / ".tmp-manifest.json-1", "{");
  drop_files(dir / step_name(2), "state/optimizer");
  EXPECT_EQ(names_in(dir / step_name(2)), 3) << "model, manifest and state";

  // Nothing outside the folder goes, and nothing from one that cannot be understood.
  save(dir / "elsewhere", 3), save(dir.path(), 4), save(dir.path(), 5);
  fs::create_directory_symlink(dir / "elsewhere" / step_name(3), dir / step_name(3));
  drop_files(dir / step_name(3), "state/optimizer");
  EXPECT_TRUE(fs::exists(dir / "elsewhere" / step_name(3) / "state/optimizer.bin"));
  fs::rename(dir / step_name(4) / "state", dir / "elsewhere/state");
  fs::create_directory_symlink(dir / "elsewhere/state", dir / step_name(4) / "state");
  drop_files(dir / step_name(4), "state/optimizer");
  EXPECT_TRUE(fs::exists(dir / "elsewhere/state/optimizer.bin"));
  flip_bit(dir / step_name(5) / "manifest.json", 0);
  drop_files(dir / step_name(5), "state/optimizer");
  EXPECT_TRUE(fs::exists(dir / step_name(5) / "state/optimizer.bin"));
}

TEST(IoCheckpoint, ARunNeverGoesOnFromWeightsAlone) {
  const TempDir dir;
  for (int64_t step = 1; step <= 4; ++step) save(dir.path(), step);
  for (const int64_t step : {1, 3}) drop_files(dir / step_name(step), "state/optimizer");
  std::vector<std::string> said;
  const auto warn = [&](const std::string& line) { said.push_back(line); };
  EXPECT_EQ(checkpoint_to_resume(dir.path(), warn), dir / step_name(4));
  EXPECT_TRUE(said.empty());
  flip_bit(dir / step_name(4) / "state/optimizer.bin", 7);
  EXPECT_EQ(checkpoint_to_resume(dir.path(), warn), dir / step_name(2));
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[1], "checkpoint step-00000003 keeps only its weights; using the previous one");
  EXPECT_EQ(find_newest_valid(dir.path(), CheckpointFiles::model).dir, dir / step_name(4));
  flip_bit(dir / step_name(2) / "state/optimizer.bin", 7);
  expect_error(
      error_of([&] { checkpoint_to_resume(dir.path(), {}); }),
      "expected a valid checkpoint to resume from, got 2 damaged ones and 2 that keep only "
      "their weights");
}

TEST(IoCheckpoint, RemovesThoseAfterAStep) {
  const TempDir dir;
  for (int64_t step = 1; step <= 4; ++step) save(dir.path(), step);
  write_file_atomic(dir / "notes", "x");
  remove_checkpoints_after(dir.path(), 2);
  for (const int64_t step : {1, 2}) EXPECT_EQ(problem(dir / step_name(step)), "");
  EXPECT_EQ(names_in(dir.path()), 3);
}

TEST(IoCheckpoint, CleansWhatKilledWritersLeft) {
  const TempDir dir;
  save(dir.path(), 1);
  make_dirs(dir / ".tmp-step-00000002-123/state");
  make_dirs(dir / ".del-step-00000000/state");
  write_file_atomic(dir / ".tmp-step-00000002-123/state/x", "x");
  clean_stale(dir.path());
  EXPECT_EQ(names_in(dir.path()), 1);
  EXPECT_EQ(problem(dir / step_name(1)), "");
  clean_stale(dir / "absent");
}

TEST(IoCheckpoint, LinksAreReplacedInOneStep) {
  const TempDir dir;
  set_link(dir.path(), "latest", "checkpoints/step-00000001");
  set_link(dir.path(), "latest", "checkpoints/step-00000002");
  EXPECT_EQ(fs::read_symlink(dir / "latest"), "checkpoints/step-00000002");
  EXPECT_EQ(names_in(dir.path()), 1);
  make_dirs(dir / "best/x");
  expect_error(error_of([&] { set_link(dir.path(), "best", "y"); }), "best");
  EXPECT_EQ(names_in(dir.path()), 2);
}

TEST(IoCheckpoint, FullDiskKeepsTheLastOne) {
  const TempDir dir;
  const int code = run_in_child([&] {
    if (!mount_tmpfs(dir.path(), 0, "size=256k")) return no_mount;
    save(dir.path(), 1, 40'000);
    expect_error(error_of([&] { save(dir.path(), 2, 200'000); }), "No space left on device");
    EXPECT_EQ(names_in(dir.path()), 1);
    EXPECT_EQ(find_newest_valid(dir.path()).dir, dir / step_name(1));
    save(dir.path(), 3, 40'000);  // the space was given back
    return 0;
  });
  if (code == no_mount) GTEST_SKIP() << "needs the right to mount a small tmpfs";
  EXPECT_EQ(code, 0);
}

// A child saves, links and rotates as fast as it can, telling each committed step through a pipe,
// until it is killed.
[[noreturn]] void save_until_killed(const fs::path& run, int pipe) {
  const fs::path parent = run / "checkpoints";
  clean_stale(parent);
  const auto found = find_newest_valid(parent);
  int64_t step = found.dir ? *parse_step_name(found.dir->filename().string()) : 0;
  for (;;) {
    save(parent, ++step, 20'000);
    if (write(pipe, &step, sizeof step) != sizeof step) _exit(3);
    set_link(run, "latest", "checkpoints/" + step_name(step));
    rotate_checkpoints(parent, 2, {step_name(step)});
    save(parent, step, 20'000);  // and once over itself
  }
}

TEST(IoCheckpoint, KilledAtAnyMomentLosesNothingCommitted) {
  // A kill, unlike a power cut, does not care for the disk: in memory there are far more saves.
  const TempDir dir(memory_dir());
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  save(dir / "checkpoints", 1, 20'000);
  const auto one_save = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);

  std::mt19937 rng(std::random_device{}());
  int64_t committed = 1;
  int rounds_that_saved = 0, left_behind = 0;
  for (int round = 0; round < 50; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      save_until_killed(dir.path(), ends[1]);
    }
    close(ends[1]);
    std::this_thread::sleep_for(one_save * int(rng() % 1000) / 100);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";
    const int64_t before = committed;
    while (read(ends[0], &committed, sizeof committed) > 0) {}
    close(ends[0]);
    rounds_that_saved += committed > before;
    for (const auto& e : fs::directory_iterator(dir / "checkpoints")) {
      const bool hidden = e.path().filename().string()[0] == '.';
      left_behind += hidden;
      if (!hidden) { EXPECT_EQ(problem(e.path()), "") << e.path(); }
    }
    const FoundCheckpoint found = find_newest_valid(dir / "checkpoints");
    EXPECT_TRUE(found.skipped.empty()) << found.skipped[0].dir << ": " << found.skipped[0].reason;
    ASSERT_TRUE(found.dir) << "round " << round;
    EXPECT_GE(*parse_step_name(found.dir->filename().string()), committed) << "round " << round;
    const fs::path latest = dir / "latest";
    EXPECT_EQ(fs::exists(latest), fs::is_symlink(latest)) << "a link to nothing";
  }
  RecordProperty("rounds_that_saved", rounds_that_saved);
  RecordProperty("left_behind", left_behind);
  // Otherwise the test showed nothing: no kill hit a writer at work.
  EXPECT_GT(rounds_that_saved, 0);
  EXPECT_GT(left_behind, 0);
  clean_stale(dir / "checkpoints");
  EXPECT_LE(names_in(dir / "checkpoints"), 3);
}

}  // namespace
}  // namespace hearth::test
