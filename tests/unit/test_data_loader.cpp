// The loader against plain re-implementations, and exact resumption from any cursor.
#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <set>
#include <thread>

#include "data/permutation.h"
#include "unit/data_files.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using Order = LoaderSpec::Order;

// Files whose tokens are all different, so that a batch shows where it was read.
struct Shards {
  TemporaryFolder dir;
  std::vector<fs::path> paths;
  std::vector<std::vector<int32_t>> tokens;

  explicit Shards(std::initializer_list<int64_t> sizes) {
    int32_t first = 0;
    for (const int64_t n : sizes) {
      paths.push_back(dir / fmt::format("s_{}.bin", paths.size()));
      tokens.push_back(counting_tokens(n, first));
      write_tokens(paths.back(), TokenFormat::llmc, 70000, tokens.back());
      first += int32_t(n);
    }
  }

  LoaderSpec spec(int64_t batch, int64_t seq, Order order) const {
    LoaderSpec s;
    s.files = paths;
    s.batch = batch;
    s.seq = seq;
    s.order = order;
    s.vocab = 70000;
    return s;
  }
};

// NoCap's DistributedDataLoader, for one process.
struct NaiveSequential {
  const Shards& shards;
  int64_t batch, seq;
  size_t shard = 0;
  int64_t position = 0;

  std::pair<std::vector<int32_t>, std::vector<int32_t>> next() {
    const auto& t = shards.tokens[shard];
    const auto begin = t.begin() + position;
    std::pair<std::vector<int32_t>, std::vector<int32_t>> xy{{begin, begin + batch * seq},
                                                             {begin + 1, begin + batch * seq + 1}};
    position += batch * seq;
    if (position + batch * seq + 1 > int64_t(t.size())) {
      shard = (shard + 1) % shards.tokens.size();
      position = 0;
    }
    return xy;
  }
};

TEST(Loader, SequentialIsNoCap) {
  const Shards shards({100, 61, 24, 25, 200});
  for (const int workers : {1, 2, 5}) {
    LoaderSpec spec = shards.spec(3, 4, Order::sequential);
    spec.workers = workers;
    Loader loader(spec);
    NaiveSequential naive{shards, 3, 4};
    for (int step = 0; step < 100; ++step) {
      const Batch b = loader.next();
      const auto [x, y] = naive.next();
      ASSERT_EQ(b.tokens, x) << step;
      ASSERT_EQ(b.targets, y) << step;
      EXPECT_EQ(b.count, 12);
      EXPECT_EQ(b.positions, (std::vector<int32_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}));
      EXPECT_TRUE(b.documents.empty());
      EXPECT_EQ(b.next.tokens, 12 * (step + 1));
    }
  }
}

TEST(Loader, SequentialCountsEpochs) {
  const Shards shards({25, 25});  // two batches of 12 each
  Loader loader(shards.spec(3, 4, Order::sequential));
  std::vector<int64_t> epochs;
  for (int i = 0; i < 9; ++i) epochs.push_back(loader.next().next.epoch);
  EXPECT_EQ(epochs, (std::vector<int64_t>{0, 0, 0, 0, 1, 1, 1, 1, 2}));
}

// The first token of each window names it.
TEST(Loader, ShuffledVisitsEachWindowOnceAnEpoch) {
  const Shards shards({101, 57, 9, 300});
  const int64_t T = 8, windows = 12 + 7 + 1 + 37;
  std::set<int32_t> expected;
  for (const auto& t : shards.tokens)
    for (size_t i = 0; i + size_t(T) < t.size(); i += size_t(T)) expected.insert(t[i]);
  ASSERT_EQ(int64_t(expected.size()), windows);

  const int64_t B = 5;
  Loader loader(shards.spec(B, T, Order::shuffled));
  std::vector<int32_t> starts;
  while (int64_t(starts.size()) < 4 * windows) {
    const Batch b = loader.next();
    for (int64_t row = 0; row < B; ++row) {
      starts.push_back(b.tokens[size_t(row * T)]);
      for (int64_t t = 0; t < T; ++t) {  // within one file, and one further on
        EXPECT_EQ(b.tokens[size_t(row * T + t)], starts.back() + t);
        EXPECT_EQ(b.targets[size_t(row * T + t)], starts.back() + t + 1);
      }
    }
  }
  std::set<std::vector<int32_t>> orders;
  for (int epoch = 0; epoch < 4; ++epoch) {
    const auto begin = starts.begin() + epoch * windows;
    const std::vector<int32_t> order(begin, begin + windows);
    EXPECT_EQ(std::set<int32_t>(order.begin(), order.end()), expected) << epoch;
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 4u);  // each epoch its own
}

TEST(Loader, SeedChoosesTheOrder) {
  const Shards shards({500});
  LoaderSpec spec = shards.spec(4, 8, Order::shuffled);
  const auto first = [&](uint64_t seed) {
    spec.seed = seed;
    return Loader(spec).next().tokens;
  };
  EXPECT_EQ(first(1), first(1));
  EXPECT_NE(first(1), first(2));
}

TEST(Permutation, IsOneAndSpreads) {
  for (const uint64_t n : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 1000u, 4097u})
    for (const uint64_t epoch : {0u, 1u, 7u}) {
      const Permutation p(n, 3, epoch);
      std::set<uint64_t> seen;
      for (uint64_t i = 0; i < n; ++i) seen.insert(p(i));
      EXPECT_EQ(seen.size(), n);
      EXPECT_LT(*seen.rbegin(), n);
    }
  // Neighbours should lie as far apart as chance has it: n/3 on average.
  const Permutation p(10000, 1, 0);
  double sum = 0;
  for (uint64_t i = 0; i + 1 < 10000; ++i) sum += std::abs(double(p(i)) - double(p(i + 1)));
  EXPECT_NEAR(sum / 9999, 10000 / 3.0, 150);
}

void expect_equal(const Batch& a, const Batch& b) {
  ASSERT_EQ(a.tokens, b.tokens);
  ASSERT_EQ(a.targets, b.targets);
  ASSERT_EQ(a.positions, b.positions);
  ASSERT_EQ(a.documents, b.documents);
  ASSERT_EQ(a.next, b.next);
}

TEST(Loader, ResumesExactlyAnywhere) {
  const Shards shards({100, 61, 25, 47});
  std::mt19937 random(1);
  for (const Order order : {Order::sequential, Order::shuffled}) {
    LoaderSpec spec = shards.spec(3, 4, order);
    std::vector<Batch> straight;
    Loader whole(spec);
    for (int i = 0; i < 60; ++i) straight.push_back(whole.next());
    for (size_t from = 0; from < 50; ++from) {  // every shard border and epoch end among them
      spec.workers = 1 + int(random() % 4);
      spec.prefetch = 1 + int(random() % 6);
      Loader resumed(spec, from ? straight[from - 1].next : Cursor{});
      Batch b;
      for (size_t i = from; i < from + 10; ++i) {
        resumed.next(b);
        expect_equal(b, straight[i]);
      }
    }
  }
}

TEST(Loader, RanksPartTheStep) {
  const Shards shards({100, 61, 47});
  for (const Order order : {Order::sequential, Order::shuffled}) {
    Loader whole(shards.spec(6, 4, order));
    std::vector<std::unique_ptr<Loader>> ranks;
    for (int r = 0; r < 3; ++r) {
      LoaderSpec spec = shards.spec(2, 4, order);
      spec.rank = r;
      spec.world = 3;
      ranks.push_back(std::make_unique<Loader>(spec));
    }
    for (int step = 0; step < 30; ++step) {
      const Batch all = whole.next();
      std::vector<int32_t> tokens, targets;
      for (auto& rank : ranks) {
        const Batch b = rank->next();
        tokens.insert(tokens.end(), b.tokens.begin(), b.tokens.end());
        targets.insert(targets.end(), b.targets.begin(), b.targets.end());
        EXPECT_EQ(b.next, all.next);
      }
      EXPECT_EQ(tokens, all.tokens);
      EXPECT_EQ(targets, all.targets);
    }
  }
}

TEST(Loader, AnotherWorldGoesOnAtTheSameCursor) {
  const Shards shards({400});
  for (const Order order : {Order::sequential, Order::shuffled}) {
    LoaderSpec four = shards.spec(2, 4, order), one = shards.spec(1, 4, order);
    four.world = 4;
    Loader before(four);
    const Cursor at = before.next().next;  // 8 rows over the ranks
    Loader straight(one), after(one, at);
    for (int i = 0; i < 8; ++i) straight.next();
    for (int i = 0; i < 20; ++i) EXPECT_EQ(straight.next().tokens, after.next().tokens);
  }
}

TEST(Loader, DocumentMaskRestartsPositions) {
  const TemporaryFolder dir;
  write_tokens(dir / "t.bin", TokenFormat::llmc, 100,
               std::vector<int32_t>{9, 1, 2, 9, 3, 4, 5, 9, 9, 6, 7, 8, 1});
  LoaderSpec spec;
  spec.files = {dir / "t.bin"};
  spec.batch = 2;
  spec.seq = 6;
  spec.document_mask = true;
  spec.document_start = 9;
  const Batch b = Loader(spec).next();
  EXPECT_EQ(b.tokens, (std::vector<int32_t>{9, 1, 2, 9, 3, 4, 5, 9, 9, 6, 7, 8}));
  EXPECT_EQ(b.targets, (std::vector<int32_t>{1, 2, 9, 3, 4, 5, 9, 9, 6, 7, 8, 1}));
  EXPECT_EQ(b.positions, (std::vector<int32_t>{0, 1, 2, 0, 1, 2, 0, 0, 0, 1, 2, 3}));
  EXPECT_EQ(b.documents, (std::vector<int32_t>{0, 0, 0, 1, 1, 1, 0, 1, 2, 2, 2, 2}));
  EXPECT_EQ(b.count, 12);
}

TEST(Loader, RefusesBadShapes) {
  const Shards shards({100, 24});
  const auto refused = [](const LoaderSpec& s, Cursor c = {}) {
    return error_of([&] { Loader loader(s, c); });
  };
  LoaderSpec spec = shards.spec(3, 8, Order::sequential);  // 25 tokens a step
  EXPECT_TRUE(
      mentions(refused(spec), {"s_1.bin", "25 tokens for one batch of 3 rows x 8 tokens", "24"}));
  spec = shards.spec(2, 8, Order::sequential);
  spec.world = 2;
  EXPECT_TRUE(mentions(refused(spec), {"s_1.bin", "one step of 2 ranks x 2 rows x 8 tokens"}));
  spec = shards.spec(1, 24, Order::shuffled);
  EXPECT_TRUE(mentions(refused(spec), {"s_1.bin", "25 tokens", "24"}));
  spec = shards.spec(30, 8, Order::shuffled);
  EXPECT_TRUE(mentions(refused(spec), {"30 windows of 8 tokens for one batch of 30 rows,", "14"}));
  spec = shards.spec(1, 8, Order::sequential);
  spec.vocab = 110;
  EXPECT_TRUE(mentions(refused(spec), {"s_1.bin", "110", "byte 1064"}));
  spec = shards.spec(1, 8, Order::sequential);
  EXPECT_TRUE(mentions(refused(spec, {.shard = 2}), {"data position", "shard 2"}));
  EXPECT_TRUE(mentions(refused(spec, {.position = 101}), {"data position", "position 101"}));
  spec.rank = 1;
  EXPECT_TRUE(mentions(refused(spec), {"rank 1 of 1"}));
  spec = shards.spec(0, 8, Order::sequential);
  EXPECT_TRUE(mentions(refused(spec), {"0 x 8"}));
  spec = shards.spec(1, 8, Order::sequential);
  spec.document_mask = true;
  EXPECT_TRUE(mentions(refused(spec), {"document", "-1"}));
  spec = shards.spec(1, 8, Order::sequential);
  spec.files.clear();
  EXPECT_TRUE(mentions(refused(spec), {"none"}));
  spec = shards.spec(1, 8, Order::sequential);
  for (const int workers : {0, 257}) {
    spec.workers = workers;
    EXPECT_TRUE(mentions(refused(spec), {"--workers", "1 to 256"}));
  }
  spec.workers = 1, spec.prefetch = 0;
  EXPECT_TRUE(mentions(refused(spec), {"--prefetch"}));
}

TEST(Loader, BenchCountsWhatItTook) {
  const Shards shards({5000});
  const LoaderRate rate = bench_loader(shards.spec(2, 16, Order::shuffled), 0.01);
  EXPECT_GT(rate.batches, 0);
  EXPECT_GT(rate.tokens_per_s, 0);
}

TEST(Loader, CountsTheBatchesThatWereNotReady) {
  const Shards shards({50000});
  LoaderSpec spec = shards.spec(64, 256, Order::shuffled);
  spec.workers = spec.prefetch = 1;
  Loader hurried(spec);  // one slot, asked for again as soon as it is empty
  for (int i = 0; i < 500; ++i) hurried.next();
  EXPECT_GT(hurried.stalls(), 0);

  Loader paced(shards.spec(1, 8, Order::shuffled));  // time enough to make a batch ahead
  int taken = 0;
  for (; taken < 1000 && paced.stalls() == taken; ++taken) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    paced.next();
  }
  EXPECT_LT(paced.stalls(), taken);
}

// Two sources whose tokens tell them apart: below and from 10000 on.
struct Mix {
  TemporaryFolder dir;
  LoaderSpec spec(int64_t batch, Order order) const {
    LoaderSpec s;
    s.mix = {{"a", 3, {dir / "a0.bin", dir / "a1.bin"}}, {"b", 1, {dir / "b.bin"}}};
    s.batch = batch, s.seq = 4, s.order = order;
    return s;
  }
  Mix() {
    write_tokens(dir / "a0.bin", TokenFormat::llmc, 70000, counting_tokens(50));
    write_tokens(dir / "a1.bin", TokenFormat::llmc, 70000, counting_tokens(31, 100));
    write_tokens(dir / "b.bin", TokenFormat::llmc, 70000, counting_tokens(43, 10000));
  }
};

TEST(Loader, MixesByWeight) {
  const Mix mix;
  for (const Order order : {Order::sequential, Order::shuffled}) {
    Loader loader(mix.spec(3, order));
    int64_t rows = 0, from_a = 0, epoch_of_a = 0;
    std::vector<int32_t> starts_a, starts_b;
    for (int step = 0; step < 100; ++step) {
      const Batch b = loader.next();
      for (size_t row = 0; row < 12; row += 4, ++rows) {
        const int32_t first = b.tokens[row];
        from_a += first < 10000;
        (first < 10000 ? starts_a : starts_b).push_back(first);
        EXPECT_LT(std::abs(double(from_a) - 0.75 * double(rows + 1)), 1.0);
        for (size_t t = 0; t < 4; ++t) {
          ASSERT_EQ(b.tokens[row + t], first + int32_t(t));
          ASSERT_EQ(b.targets[row + t], first + int32_t(t) + 1);
        }
      }
      ASSERT_EQ(b.next.sources.size(), 2u);
      EXPECT_EQ(b.next.sources[0].tokens, 4 * from_a);
      EXPECT_EQ(b.next.sources[0].tokens + b.next.sources[1].tokens, b.next.tokens);
      epoch_of_a = b.next.sources[0].epoch;
    }
    // Each window of a source once an epoch: 12 + 7 of a, 10 of b.
    EXPECT_EQ(std::set<int32_t>(starts_a.begin(), starts_a.begin() + 19).size(), 19u);
    EXPECT_EQ(std::set<int32_t>(starts_b.begin(), starts_b.begin() + 10).size(), 10u);
    EXPECT_EQ(std::is_sorted(starts_a.begin(), starts_a.begin() + 19), order == Order::sequential);
    EXPECT_EQ(epoch_of_a, (225 - (order == Order::sequential)) / 19);
  }
}

TEST(Loader, AMixResumesExactlyAtAnyWorldSize) {
  const Mix mix;
  std::mt19937 random(8);
  for (const Order order : {Order::sequential, Order::shuffled}) {
    std::vector<Batch> straight;
    Loader whole(mix.spec(6, order));
    for (int i = 0; i < 60; ++i) straight.push_back(whole.next());
    for (size_t from = 0; from < 50; from += 1 + random() % 3) {
      const Cursor start = from ? straight[from - 1].next : Cursor{};
      LoaderSpec spec = mix.spec(6, order);
      spec.workers = 1 + int(random() % 4), spec.prefetch = 1 + int(random() % 6);
      Loader resumed(spec, start);
      std::vector<std::unique_ptr<Loader>> ranks;
      for (int r = 0; r < 3; ++r) {
        spec.batch = 2, spec.world = 3, spec.rank = r;
        ranks.push_back(std::make_unique<Loader>(spec, start));
      }
      for (size_t i = from; i < from + 10; ++i) {
        expect_equal(resumed.next(), straight[i]);
        std::vector<int32_t> tokens;
        for (auto& rank : ranks) {
          const Batch b = rank->next();
          tokens.insert(tokens.end(), b.tokens.begin(), b.tokens.end());
          EXPECT_EQ(b.next, straight[i].next);
        }
        EXPECT_EQ(tokens, straight[i].tokens);
      }
    }
  }
}

TEST(Loader, RefusesBadMixes) {
  const Mix mix;
  const auto refused = [&](auto change, Cursor c = {}) {
    LoaderSpec s = mix.spec(2, Order::sequential);
    change(s);
    return error_of([&] { Loader loader(s, c); });
  };
  EXPECT_TRUE(mentions(refused([](auto& s) { s.mix[1].weight = 0; }), {"positive weight", "b"}));
  EXPECT_TRUE(mentions(refused([](auto& s) { s.files = s.mix[0].files; }), {"both"}));
  EXPECT_TRUE(mentions(refused([](auto& s) { s.seq = 31; }), {"a1.bin", "32"}));
  Cursor far{.tokens = 4};
  EXPECT_TRUE(mentions(refused([](auto&) {}, far), {"data position", "0 mixed"}));
  far.sources = {{}, {.position = 44}};
  EXPECT_TRUE(mentions(refused([](auto&) {}, far), {"data position", "2 mixed"}));
  const Cursor next = Cursor{0, 0, 0, 9, {{1, 1, 5, 6}, {0, 0, 2, 3}}}.next_epoch();
  EXPECT_EQ(next, (Cursor{0, 0, 0, 9, {{2, 0, 0, 6}, {1, 0, 0, 3}}}));
  EXPECT_EQ((Cursor{2, 1, 7, 9}.next_epoch()), (Cursor{3, 0, 0, 9}));
}

TEST(Sources, WeightsAreReadFromTheFlag) {
  const TemporaryFolder dir;
  for (const char* name : {"a0.bin", "a1.bin", "b.bin", "c,d:2"}) put_file(dir / name, "x");
  const std::string at = dir.path().string() + "/";
  const auto parse = [&](std::vector<std::string> words) { return parse_sources(words); };
  auto s = parse({at + "a*.bin:0.7," + at + "b.bin:0.3"});
  ASSERT_EQ(s.size(), 2u);
  EXPECT_EQ(s[0].name, at + "a*.bin");
  EXPECT_EQ(s[0].files, (std::vector<fs::path>{dir / "a0.bin", dir / "a1.bin"}));
  EXPECT_EQ(s[0].weight, 0.7);
  EXPECT_EQ(s[1].weight, 0.3);
  s = parse({at + "{a0,b}.bin:2", at + "a1.bin:1e-1"});
  ASSERT_EQ(s.size(), 2u);
  EXPECT_EQ(s[0].files.size(), 2u);
  EXPECT_EQ(s[1].weight, 0.1);
  s = parse({at + "a0.bin", at + "c,d:2"});  // no weights: one source
  ASSERT_EQ(s.size(), 1u);
  EXPECT_EQ(s[0].name, "");
  EXPECT_EQ(s[0].files, (std::vector<fs::path>{dir / "a0.bin", dir / "c,d:2"}));
  EXPECT_TRUE(mentions(error_of([&] { parse({at + "a0.bin:1," + at + "b.bin"}); }), {"b.bin"}));
  EXPECT_TRUE(mentions(error_of([&] { parse({at + "a0.bin", at + "b.bin:1"}); }), {"a0.bin"}));
  EXPECT_TRUE(mentions(error_of([&] { parse({at + "a0.bin:0"}); }), {"above 0"}));
  EXPECT_TRUE(mentions(error_of([&] { parse({at + "no*.bin:1"}); }), {"no file matches"}));
}

}  // namespace
}  // namespace hearth
