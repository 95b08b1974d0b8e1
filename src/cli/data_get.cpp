// hearth data get: downloads known data sets, with checksums and resume.
#include "cli/data_get.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include "cli/commands.h"
#include "data/download.h"
#include "sys/counted.h"
#include "sys/error.h"

namespace hearth::inline cli {
namespace {

struct GetFlags {
  std::string name, out, catalogue, base_url;
  std::vector<std::string> only;
  bool list = false, json = false;
  HttpsSpec https;
  DownloadSpec download;
};

nlohmann::ordered_json set_json(const CatalogueSet& s) {
  nlohmann::ordered_json files = nlohmann::json::array();
  for (const CatalogueFile& f : s.files)
    files.push_back({{"name", f.name}, {"url", f.url}, {"sha256", f.sha256}, {"bytes", f.bytes}});
  return {{"name", s.name}, {"about", s.about}, {"licence", s.licence}, {"files", files}};
}

void list_sets(const std::vector<CatalogueSet>& sets, bool json) {
  for (const CatalogueSet& s : sets) {
    if (json) {
      print_json(set_json(s));
      continue;
    }
    const auto known = std::count_if(s.files.begin(), s.files.end(),
                                     [](const CatalogueFile& f) { return !f.sha256.empty(); });
    fmt::print("{:<22}{}; {}; {}, {} with a known sha256\n", s.name, s.about, s.licence,
               counted(int64_t(s.files.size()), "file"), known);
  }
}

// The same path on the server `base`.
std::string moved(const std::string& url, const std::string& base) {
  const size_t path = url.find('/', url.find("://") + 3);
  return base.empty() || path == url.npos ? url : base + url.substr(path);
}

bool chosen(const CatalogueFile& f, const std::vector<std::string>& only) {
  return only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& pattern) {
           return fnmatch(pattern.c_str(), f.name.c_str(), 0) == 0;
         });
}

std::string describe(const Downloaded& d) {
  const std::string how = d.was_there ? "already present" : "downloaded";
  switch (d.checked) {
    case Downloaded::Checked::catalogue:
      return how + ", sha256 matches the catalogue";
    case Downloaded::Checked::earlier:
      return how + ", sha256 matches the first download";
    default:
      return how +
             fmt::format(
                 ", sha256 {} not verified (the catalogue has none); stored for the next check",
                 d.sha256);
  }
}

void run_get(const GetFlags& flags) {
  const std::vector<CatalogueSet> sets =
      flags.catalogue.empty() ? built_in_catalogue() : read_catalogue(flags.catalogue);
  if (flags.list || flags.name.empty()) return list_sets(sets, flags.json);
  const CatalogueSet& set = find_set(sets, flags.name);
  if (flags.out.empty()) fail_usage("data get", "data get needs --out with the folder to write to");
  DownloadSpec spec = flags.download;
  spec.folder = flags.out;
  spec.progress = true;
  Https https(flags.https);
  nlohmann::ordered_json files = nlohmann::json::array();
  for (CatalogueFile f : set.files) {
    if (!chosen(f, flags.only)) continue;
    f.url = moved(f.url, flags.base_url);
    const Downloaded d = download(https, f, spec);
    files.push_back({{"file", (spec.folder / f.name).string()},
                     {"bytes", d.bytes},
                     {"sha256", d.sha256},
                     {"checked", name(d.checked)},
                     {"was_there", d.was_there},
                     {"resumed_from", d.resumed_from}});
    if (!flags.json)
      fmt::print("{}: {} bytes, {}\n", (spec.folder / f.name).string(), d.bytes, describe(d));
  }
  if (files.empty())
    fail_usage("data get", "--only matches no file of {}; data get --list shows the sets",
               set.name);
  if (flags.json)
    print_json({{"name", set.name}, {"licence", set.licence}, {"files", files}});
  else
    fmt::print("{}: {} files; licence {}\n", set.name, files.size(), set.licence);
}

}  // namespace

void add_data_get(CLI::App& data) {
  auto f = std::make_shared<GetFlags>();
  CLI::App* c = data.add_subcommand("get", "download known data sets and models over HTTPS");
  c->add_option("name", f->name, "set to download; default: list the known sets");
  c->add_option("--out", f->out, "output folder; an interrupted download resumes from it");
  c->add_flag("--list", f->list, "list the known sets");
  c->add_option("--only", f->only, "download only these files of the set: names or globs");
  c->add_option("--catalogue", f->catalogue, "JSON file that replaces the built-in catalogue");
  c->add_option("--base-url", f->base_url,
                "mirror to use in place of the catalogue's hosts: https://host");
  c->add_option("--ca", f->https.ca_file,
                "file of CA certificates to trust in place of the system's");
  c->add_option("--stall", f->https.stall_seconds, "seconds without data before a retry")
      ->check(at_least(1))
      ->capture_default_str();
  c->add_option("--retries", f->download.retries,
                "consecutive retries without new data before giving up")
      ->check(at_least(0))
      ->capture_default_str();
  c->add_option("--backoff", f->download.backoff,
                "seconds before the first retry; doubles with each")
      ->check(at_least(0))
      ->capture_default_str();
  c->add_option("--max-bytes", f->download.max_bytes,
                "maximum size of a file whose length neither catalogue nor server states")
      ->check(at_least(1))
      ->capture_default_str();
  c->add_flag("--json", f->json, "print the result as one JSON object");
  c->callback([f] { run_get(*f); });
}

}  // namespace hearth::inline cli
