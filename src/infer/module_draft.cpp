#include "infer/module_draft.h"

#include <algorithm>

namespace hearth::inline infer {

// A row of module feed.module; its states are at a level and a position `from`.
void ModuleDrafter::add_row(ModuleFeed& feed, const Proposal& d, int64_t position, int64_t level,
                            int64_t from) const {
  feed.tokens.push_back(d.token(position + feed.module + 1));
  feed.positions.push_back(int32_t(position));
  feed.sequences.push_back(int32_t(feed.tables.size()) - 1);
  feed.sources.push_back(ModuleRunner::source(spec_, level, d.seq->pages.blocks, from));
}

void ModuleDrafter::fill(std::span<const Fed> fed) {
  for (int64_t k = 0; k < spec_.modules; ++k) {
    ModuleFeed feed{.module = k};
    for (const auto& [seq, from, rows] : fed) {
      const int64_t end = std::min(from + rows, seq->size() - k - 1);
      if (end > from || seq->read == 0) seq->read = seq->size();
      if (end <= from) continue;
      feed.tables.push_back(seq->pages.blocks);
      for (int64_t p = from; p < end; ++p) add_row(feed, {seq, 0}, p, k, p);
    }
    if (!feed.positions.empty()) runner_.run_module(feed);
  }
}

// The first position that the module has to read: where it read a guess or has not read yet. If
// many tokens were drawn without drafts, it reads only the last of them, which makes guesses worse,
// never wrong.
int64_t ModuleDrafter::first_row(const Sequence& seq, int64_t module) const {
  const int64_t most = std::min(1 + drafts_ + spec_.modules, ModuleRunner::most_rows(spec_));
  return std::max({int64_t(0), seq.read - module - 1, seq.pages.cached - most});
}

void ModuleDrafter::propose(std::span<Sequence* const> sequences) {
  std::vector<Proposal> drafts;
  const auto propose_them = [&] {
    if (!drafts.empty()) propose_some(drafts);
    drafts.clear();
  };
  int64_t rows = 0;
  for (Sequence* seq : sequences) {
    if (seq->ended || seq->size() <= seq->read || seq->pages.cached != seq->size() - 1) continue;
    seq->proposal.clear();
    const int64_t count = std::min(seq->guesses, seq->generation.room() - 1);
    if (count <= 0) continue;
    const int64_t own = seq->pages.cached - first_row(*seq, spec_.modules - 1);
    // The modules overwrite the last `own` rows, so no other sequence may share their blocks.
    if (!pool_.extend(seq->pages, seq->size() + count, own)) continue;
    if (rows + own > ModuleRunner::most_rows(spec_) || int64_t(drafts.size()) == spec_.sequences)
      propose_them(), rows = 0;
    drafts.push_back({seq, count});
    rows += own;
  }
  propose_them();
}

void ModuleDrafter::propose_some(std::span<Proposal> drafts) {
  read_tokens(drafts);
  std::vector<Proposal*> more;
  for (int64_t ahead = 1;; ++ahead) {
    more.clear();
    for (Proposal& d : drafts)
      if (d.count > int64_t(d.guesses.size())) more.push_back(&d);
    if (more.empty()) break;
    guess_further(more, ahead);
  }
  for (Proposal& d : drafts) {
    d.guesses.resize(size_t(d.count));
    d.seq->proposal = std::move(d.guesses);
    d.seq->read = d.seq->size();
  }
}

// The modules read the tokens that are new to them, and the guesses of the modules before them.
void ModuleDrafter::read_tokens(std::span<Proposal> drafts) {
  std::vector<Proposal*> all;
  for (Proposal& d : drafts) all.push_back(&d);
  for (int64_t k = 0; k < spec_.modules; ++k) {
    ModuleFeed feed{.module = k};
    for (const Proposal& d : drafts) {
      feed.tables.push_back(d.seq->pages.blocks);
      for (int64_t p = first_row(*d.seq, k); p < d.seq->pages.cached; ++p)
        add_row(feed, d, p, k, p);
      feed.wanted.push_back(int32_t(feed.positions.size()) - 1);
    }
    run(feed, all);
  }
}

// One more guess of each, from the position that is `ahead` of the last one with states of the
// model. The next step overwrites what is stored there.
void ModuleDrafter::guess_further(std::span<Proposal*> drafts, int64_t ahead) {
  for (int64_t k = 0; k < spec_.modules; ++k) {
    ModuleFeed feed{.module = k};
    for (const Proposal* d : drafts) {
      const int64_t at = d->seq->pages.cached - 1 + ahead;
      feed.tables.push_back(d->seq->pages.blocks);
      if (k == 0)
        add_row(feed, *d, at, 1, at - 1);
      else
        add_row(feed, *d, at, k, at);
      if (k == spec_.modules - 1) feed.wanted.push_back(int32_t(feed.positions.size()) - 1);
    }
    run(feed, drafts);
  }
}

void ModuleDrafter::run(const ModuleFeed& feed, std::span<Proposal* const> drafts) {
  const std::vector<int32_t> likeliest = runner_.run_module(feed);
  for (size_t i = 0; i < likeliest.size(); ++i) drafts[i]->guesses.push_back(likeliest[i]);
}

}  // namespace hearth::inline infer
