// generation_config.json as sampling defaults: what is read, what is refused, and what wins.
#include "infer/generation_config.h"

#include <gtest/gtest.h>

#include "served_folder.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;
using test::error_of;
using test::expect_error;

GenerationDefaults defaults_of(const char* text) {
  return GenerationDefaults::from_json(json::parse(text), "m/generation_config.json");
}

TEST(GenerationConfig, IsReadFieldByField) {
  const GenerationDefaults d = defaults_of(
      R"({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "do_sample": true,
          "repetition_penalty": 1.1, "max_new_tokens": 40, "transformers_version": "4.51"})");
  SamplingSpec s;
  EXPECT_EQ(d.apply(s),
            "temperature 0.6, top_k 20, top_p 0.95, min_p 0.05, "
            "repetition_penalty 1.1, max_tokens 40");
  EXPECT_EQ(s.temperature, 0.6f);
  EXPECT_EQ(s.top_k, 20);
  EXPECT_EQ(s.top_p, 0.95f);
  EXPECT_EQ(s.min_p, 0.05f);
  EXPECT_EQ(s.repetition_penalty, 1.1f);
  EXPECT_EQ(s.max_tokens, 40);
}

TEST(GenerationConfig, LosesToWhatWasGiven) {
  const GenerationDefaults d = defaults_of(R"({"temperature": 0.6, "top_k": 20})");
  SamplingSpec s;
  s.temperature = 0.3f;
  EXPECT_EQ(d.apply(s, {"temperature"}), "top_k 20");
  EXPECT_EQ(s.temperature, 0.3f);
  SamplingSpec all;
  EXPECT_EQ(d.apply(all, {"temperature", "top_k"}), "");
}

TEST(GenerationConfig, WithoutSamplingIsGreedy) {
  SamplingSpec s;
  EXPECT_EQ(defaults_of(R"({"do_sample": false, "temperature": 0.6})").apply(s), "temperature 0");
  EXPECT_EQ(s.temperature, 0);
  SamplingSpec unsaid;
  EXPECT_EQ(defaults_of(R"({"eos_token_id": 7})").apply(unsaid), "");
  EXPECT_EQ(defaults_of(R"({"top_k": -1, "top_p": null})").apply(unsaid), "top_k 0");
}

TEST(GenerationConfig, RefusesWhatCannotBe) {
  const auto refused = [](const char* text, const char* part) {
    const std::string message = error_of([&] { defaults_of(text); });
    expect_error(message, part);
    expect_error(message, "[m/generation_config.json]");
  };
  refused(R"({"temperature": -1})", "expected temperature to be a number from 0 to 100, got");
  refused(R"({"temperature": "hot"})", "expected temperature");
  refused(R"({"top_p": 1.5})", "expected top_p");
  refused(R"({"min_p": -0.5})", "expected min_p");
  refused(R"({"top_k": 2.5})", "expected top_k to be a whole number");
  refused(R"({"top_k": 18446744073709551615})", "expected top_k");
  refused(R"({"repetition_penalty": 0})", "expected repetition_penalty");
  refused(R"({"max_new_tokens": 0})", "expected max_new_tokens");
  refused(R"({"do_sample": "no"})", "expected do_sample to be true or false");
  refused("[1]", "expected an object");
}

TEST(GenerationConfig, IsReadFromTheFolder) {
  const test::TempDir dir;
  write_served_folder(dir.path());
  const fs::path file = dir / "generation_config.json";
  write_file_atomic(file, R"({"temperature": 0.25})");
  const GenerationDefaults d = GenerationDefaults::read(ModelSource::open(dir.path()));
  EXPECT_EQ(d.temperature, 0.25f);
  EXPECT_EQ(d.file, file);
  write_file_atomic(file, R"({"a": ")" + std::string(2 << 20, 'x') + "\"}");
  expect_error(error_of([&] { read_generation_config(dir.path()); }), "expected a file of at most");
  fs::remove(file);
  EXPECT_TRUE(read_generation_config(dir.path()).is_null());
  EXPECT_TRUE(GenerationDefaults::read(ModelSource::open(dir.path())).file.empty());
}

TEST(GenerationConfig, OfABaseKeepsItsFields) {
  const ordered_json base{{"temperature", 0.6}, {"top_k", 20}, {"eos_token_id", 3}};
  const json j = json::parse(hf_generation_config_json(1, 2, {7}, base));
  EXPECT_EQ(
      j,
      json({{"temperature", 0.6}, {"top_k", 20}, {"bos_token_id", 1}, {"eos_token_id", {2, 7}}}));
  EXPECT_EQ(json::parse(hf_generation_config_json(-1, -1, {}, base)),
            json({{"temperature", 0.6}, {"top_k", 20}}));
}

}  // namespace
}  // namespace hearth
