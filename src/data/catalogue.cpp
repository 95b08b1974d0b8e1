#include "data/catalogue.h"

#include <algorithm>

#include "formats/json.h"
#include "sys/error.h"

namespace hearth::inline data {
namespace {

using json = nlohmann::json;

constexpr const char* hub = "https://huggingface.co/";

// URLs name a fixed revision, so the files cannot change after they were checked.
CatalogueSet fineweb_tokens() {
  CatalogueSet s{
      "fineweb10b-gpt2", "FineWeb, 10B GPT-2 tokens in shards of 100M (20 GB)", "ODC-By 1.0", {}};
  const std::string at = std::string(hub) +
                         "datasets/kjj0/fineweb10B-gpt2/resolve/"
                         "889765ea1f903759787add96995d81171b632d0c/";
  const auto add = [&](const std::string& name, const char* sha256, int64_t bytes) {
    s.files.push_back({name, at + name, sha256, bytes});
  };
  add("fineweb_val_000000.bin", "5b95c8e0966f0861685b307b23dc5ae42b228ef74b28cb499784ae021f201640",
      200001024);
  add("fineweb_train_000001.bin",
      "771fa4a99b9fe0946ffb6e848b4ba5c6a9b0fe87860ebf03bc2c1c7e45f8178e", 200001024);
  for (int i = 2; i <= 103; ++i) add(fmt::format("fineweb_train_{:06}.bin", i), "", -1);
  return s;
}

CatalogueSet fineweb_text() {
  CatalogueSet s{
      "fineweb-sample-10bt", "FineWeb sample of 10B tokens as Parquet (30 GB)", "ODC-By 1.0", {}};
  for (int i = 0; i < 15; ++i) {
    const std::string name = fmt::format("{:03}_00000.parquet", i);
    s.files.push_back({name,
                       std::string(hub) +
                           "datasets/HuggingFaceFW/fineweb/resolve/"
                           "9bb295ddab0e05d785b879661af7260fed5140fc/sample/10BT/" +
                           name,
                       "", -1});
  }
  return s;
}

CatalogueSet tiny_stories() {
  const std::string at = std::string(hub) +
                         "datasets/roneneldan/TinyStories/resolve/"
                         "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64/";
  return {"tinystories",
          "TinyStories written by GPT-4, text (2.2 GB)",
          "CDLA-Sharing-1.0",
          {{"TinyStoriesV2-GPT4-train.txt", at + "TinyStoriesV2-GPT4-train.txt",
            "6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443", 2227753162},
           {"TinyStoriesV2-GPT4-valid.txt", at + "TinyStoriesV2-GPT4-valid.txt",
            "6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d", 22502601}}};
}

CatalogueSet tiny_shakespeare() {
  return {"tinyshakespeare",
          "Shakespeare's plays, text (1.1 MB)",
          "public domain",
          {{"input.txt",
            "https://raw.githubusercontent.com/karpathy/char-rnn/"
            "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed", 1115394}}};
}

std::vector<CatalogueFile> gpt2_files() {
  const std::string at =
      std::string(hub) + "openai-community/gpt2/resolve/607a30d783dfa663caf39e06633721c8d4cfcd7e/";
  return {{"config.json", at + "config.json",
           "0daed7749b4f02b8f76240d5444551d7b08712dab4d0adb8239c56ba823bb7b4", 665},
          {"model.safetensors", at + "model.safetensors",
           "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707", 548105171},
          {"tokenizer.json", at + "tokenizer.json",
           "8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6", -1},
          {"tokenizer_config.json", at + "tokenizer_config.json",
           "5e04eb606e3a1583530a42e36c2a6b6615c86f34fe77e44d9ddeb43ff940931f", -1},
          {"vocab.json", at + "vocab.json",
           "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783", 1042301},
          {"merges.txt", at + "merges.txt",
           "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5", 456318}};
}

bool is_digest(const std::string& s) {
  return s.size() == 64 && s.find_first_not_of("0123456789abcdef") == s.npos;
}

// Whether a file name stays inside its folder.
bool is_plain_name(const std::string& s) {
  return !s.empty() && s.size() < 200 && s[0] != '.' && s.find_first_of("/\\") == s.npos &&
         std::all_of(s.begin(), s.end(), [](char c) { return c > ' ' && c < 127; });
}

std::string text_of(const json& j, const char* key, const std::string& where, bool required) {
  if (!j.is_object()) fail(where, "expected an object, got {}", j.type_name());
  if (!j.contains(key) && !required) return "";
  if (!j.contains(key) || !j[key].is_string()) fail(where, "expected a string in \"{}\"", key);
  return j[key].get<std::string>();
}

int64_t bytes_of(const json& j, const std::string& where) {
  if (!j.contains("bytes")) return -1;
  if (!j["bytes"].is_number_unsigned()) fail(where, "expected \"bytes\" to be a whole number");
  return j["bytes"].get<int64_t>();
}

void expect_list(const json& j, const std::string& where) {
  if (!j.is_array()) fail(where, "expected a list, got {}", j.type_name());
}

}  // namespace

std::vector<CatalogueSet> built_in_catalogue() {
  CatalogueSet gpt2{"gpt2", "GPT-2 124M: weights and tokenizer (550 MB)", "MIT", gpt2_files()};
  CatalogueSet tokenizer{"gpt2-tokenizer", "GPT-2 tokenizer without the model (3 MB)", "MIT",
                         gpt2_files()};
  std::erase_if(tokenizer.files, [](const CatalogueFile& f) {
    return f.name == "model.safetensors" || f.name == "config.json";
  });
  return {fineweb_tokens(), fineweb_text(), tiny_stories(), tiny_shakespeare(), gpt2, tokenizer};
}

std::vector<CatalogueSet> read_catalogue(const std::filesystem::path& path) {
  const std::string where = path.string();
  std::vector<CatalogueSet> all;
  const json catalogue = read_json(path);
  expect_list(catalogue, where);
  for (const json& entry : catalogue) {
    CatalogueSet s{text_of(entry, "name", where, true),
                   text_of(entry, "about", where, false),
                   text_of(entry, "licence", where, false),
                   {}};
    const json files = entry.value("files", json());
    expect_list(files, where + ": files");
    for (const json& file : files) {
      CatalogueFile f{text_of(file, "name", where, true), text_of(file, "url", where, true),
                      text_of(file, "sha256", where, false), bytes_of(file, where)};
      if (!is_plain_name(f.name))
        fail(where, "expected a plain file name, got {}", in_quotes(f.name));
      if (!f.sha256.empty() && !is_digest(f.sha256))
        fail(where, "expected a sha256 of 64 hex digits for {}, got {}", f.name,
             in_quotes(f.sha256));
      s.files.push_back(std::move(f));
    }
    all.push_back(std::move(s));
  }
  return all;
}

const CatalogueSet& find_set(const std::vector<CatalogueSet>& sets, const std::string& name) {
  std::vector<std::string> names;
  for (const CatalogueSet& s : sets) {
    if (s.name == name) return s;
    names.push_back(s.name);
  }
  fail_usage("data get", "expected one of {}, got {}; the nearest is {}", fmt::join(names, ", "),
             in_quotes(name), nearest(name, names));
}

}  // namespace hearth::inline data
