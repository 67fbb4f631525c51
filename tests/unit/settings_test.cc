#include "base/settings/settings.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "base/protocol/control_protocol.h"
#include "base/settings/settings_table.h"

namespace ckpt {
namespace {

using Variables = std::map<std::string, std::string>;

Result<Settings> parse(const Variables& variables) {
  return parse_settings(
      [](const char* name, void* context) -> const char* {
        auto& all = *static_cast<const Variables*>(context);
        auto found = all.find(name);
        return found == all.end() ? nullptr : found->second.c_str();
      },
      const_cast<Variables*>(&variables));
}

TEST(Settings, DefaultsAreThoseOfTheReadme) {
  auto s = parse({});
  ASSERT_TRUE(s.ok());
  EXPECT_STREQ(s->directory, "");
  EXPECT_EQ(s->every_ns, 0);
  EXPECT_EQ(s->mode, Mode::kAuto);
  EXPECT_EQ(s->segment_bytes, 64u << 10);
  EXPECT_EQ(s->pool_bytes, 64u << 20);
  EXPECT_EQ(s->signal, kDefaultCheckpointSignal);
  EXPECT_EQ(s->stop_timeout_ns, 2'000'000'000);
  EXPECT_EQ(s->images_to_keep, 2u);
  EXPECT_EQ(s->increments, 0u);
  EXPECT_FALSE(s->dma);
  EXPECT_EQ(s->compress.kind, Compression::kNone);
  EXPECT_STREQ(s->to, "");
  EXPECT_STREQ(s->key_file, "");
  EXPECT_EQ(s->heap, Heap::kLibc);
  EXPECT_EQ(s->order, Order::kAddress);
  EXPECT_TRUE(s->log);
  EXPECT_FALSE(s->disabled);
}

TEST(Settings, AllOfThem) {
  auto s = parse({{"CKPT_DIR", "/images"},
                  {"CKPT_EVERY", "250ms"},
                  {"CKPT_MODE", "sequential"},
                  {"CKPT_FAULTS", "in-thread"},
                  {"CKPT_SEGMENT", "4K"},
                  {"CKPT_POOL", "64K"},
                  {"CKPT_SIGNAL", "40"},
                  {"CKPT_STOP_TIMEOUT", "1m"},
                  {"CKPT_KEEP", "0"},
                  {"CKPT_INCREMENTS", "254"},
                  {"CKPT_ENGINE", "dma:800M:30:1K"},
                  {"CKPT_COMPRESS", "zstd:7"},
                  {"CKPT_TO", "cat > \"$CKPT_IMAGE_NAME\""},
                  {"CKPT_KEY_FILE", "keys/mine"},
                  {"CKPT_HEAP", "jemalloc:huge"},
                  {"CKPT_ORDER", "cold"},
                  {"CKPT_DISABLE", "1"},
                  {"CKPT_LOG", "0"}});
  ASSERT_TRUE(s.ok()) << s.error().message();
  EXPECT_STREQ(s->directory, "/images");
  EXPECT_EQ(s->every_ns, 250'000'000);
  EXPECT_EQ(s->mode, Mode::kSequential);
  EXPECT_EQ(s->faults, FaultBackEnd::kInThread);
  EXPECT_EQ(s->segment_bytes, 4096u);
  EXPECT_EQ(s->pool_bytes, 65536u);
  EXPECT_EQ(s->signal, 40);
  EXPECT_EQ(s->stop_timeout_ns, 60'000'000'000);
  EXPECT_EQ(s->images_to_keep, 0u);
  EXPECT_EQ(s->heap, Heap::kJemallocHuge);
  EXPECT_EQ(s->order, Order::kCold);
  EXPECT_EQ(s->increments, 254u);
  EXPECT_TRUE(s->dma);
  EXPECT_EQ(s->dma_bytes_per_second, 800ull << 20);
  EXPECT_EQ(s->dma_threshold, 30u);
  EXPECT_EQ(s->dma_burst_bytes, 1024u);
  EXPECT_EQ(s->compress.kind, Compression::kZstd);
  EXPECT_EQ(s->compress.level, 7);
  EXPECT_STREQ(s->to, "cat > \"$CKPT_IMAGE_NAME\"");
  EXPECT_STREQ(s->key_file, "keys/mine");
  EXPECT_TRUE(s->disabled);
  EXPECT_FALSE(s->log);
}

TEST(Settings, EachPartOfAnEngineMayBeLeftOut) {
  for (const char* engine : {"cpu", "dma", "dma:0", "dma:0:50", "dma:0:50:4096"}) {
    auto s = parse({{"CKPT_ENGINE", engine}});
    ASSERT_TRUE(s.ok()) << engine;
    EXPECT_EQ(s->dma, engine[0] == 'd') << engine;
    EXPECT_EQ(s->dma_bytes_per_second, 0u) << engine;
    EXPECT_EQ(s->dma_threshold, 50u) << engine;
    EXPECT_EQ(s->dma_burst_bytes, 4096u) << engine;
  }
}

TEST(Settings, EachCompression) {
  for (Compression kind : {Compression::kNone, Compression::kLz4, Compression::kZstd, Compression::kAuto}) {
    auto c = parse_compression("CKPT_COMPRESS", compression_name(kind));
    ASSERT_TRUE(c.ok()) << compression_name(kind);
    EXPECT_EQ(c->kind, kind);
    EXPECT_EQ(c->level, kDefaultZstdLevel);
  }
  for (const char* wrong :
       {"gzip", "zstd:", "zstd:0", "zstd:20", "zstd:-1", "zstd:1x", "lz4:3", "auto:1", "LZ4"}) {
    EXPECT_FALSE(parse_compression("CKPT_COMPRESS", wrong).ok()) << wrong;
  }
}

TEST(Settings, AnEmptyValueIsNone) {
  auto s = parse({{"CKPT_DIR", ""}, {"CKPT_EVERY", ""}, {"CKPT_POOL", ""}, {"CKPT_DISABLE", ""}});
  ASSERT_TRUE(s.ok());
  EXPECT_FALSE(s->disabled);
  EXPECT_EQ(s->pool_bytes, 64u << 20);
}

TEST(Settings, EachWrongValueIsNamedWithARemedy) {
  const Variables wrong[] = {{{"CKPT_DIR", std::string(1024, 'd')}},
                             {{"CKPT_EVERY", "soon"}},
                             {{"CKPT_EVERY", "10us"}},
                             {{"CKPT_EVERY", "-5s"}},
                             {{"CKPT_EVERY", "99999999999999999999s"}},
                             {{"CKPT_EVERY", "9999999999999h"}},
                             {{"CKPT_MODE", "Realtime"}},
                             {{"CKPT_FAULTS", "thread"}},
                             {{"CKPT_COMPRESS", "best"}},
                             {{"CKPT_TO", std::string(2048, 'c')}},
                             {{"CKPT_KEY_FILE", std::string(1024, 'k')}},
                             {{"CKPT_COMPRESS", "zstd:22"}},
                             {{"CKPT_SEGMENT", "2K"}},
                             {{"CKPT_SEGMENT", "512K"}},
                             {{"CKPT_SEGMENT", "12K"}},
                             {{"CKPT_SEGMENT", "64X"}},
                             {{"CKPT_POOL", "1"}},
                             {{"CKPT_POOL", "65G"}},
                             {{"CKPT_POOL", "18446744073709551615G"}},
                             {{"CKPT_SIGNAL", "9"}},
                             {{"CKPT_SIGNAL", "11"}},
                             {{"CKPT_SIGNAL", "33"}},
                             {{"CKPT_SIGNAL", "65"}},
                             {{"CKPT_SIGNAL", "60x"}},
                             {{"CKPT_STOP_TIMEOUT", "0"}},
                             {{"CKPT_STOP_TIMEOUT", "fast"}},
                             {{"CKPT_KEEP", "-1"}},
                             {{"CKPT_KEEP", "4294967296"}},
                             {{"CKPT_KEEP", "1025"}},
                             {{"CKPT_KEEP", "two"}},
                             {{"CKPT_INCREMENTS", "255"}},
                             {{"CKPT_ENGINE", "gpu"}},
                             {{"CKPT_ENGINE", "dma:"}},
                             {{"CKPT_ENGINE", "dma800M"}},
                             {{"CKPT_ENGINE", "dma:1G:102"}},
                             {{"CKPT_ENGINE", "dma:1G:"}},
                             {{"CKPT_ENGINE", "dma:1G::4K"}},
                             {{"CKPT_ENGINE", "dma:1G:50:"}},
                             {{"CKPT_ENGINE", "dma:1G:50:511"}},
                             {{"CKPT_ENGINE", "dma:1G:50:512K"}},
                             {{"CKPT_ENGINE", "dma:1G:50:4K:1"}},
                             {{"CKPT_INCREMENTS", "-1"}},
                             {{"CKPT_INCREMENTS", "few"}},
                             {{"CKPT_HEAP", "tcmalloc"}},
                             {{"CKPT_HEAP", "jemalloc:large"}},
                             {{"CKPT_LEAVE_OUT", std::string(512, 'p')}},
                             {{"CKPT_ORDER", "random"}}};
  for (const Variables& v : wrong) {
    auto s = parse(v);
    ASSERT_FALSE(s.ok()) << v.begin()->first << "=" << v.begin()->second;
    std::string text(s.error().message());
    EXPECT_EQ(s.error().code, ExitCode::kUsage);
    EXPECT_NE(text.find(v.begin()->first), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

TEST(Settings, SizesAndDurationsHaveTheirUnits) {
  struct {
    const char* text;
    uint64_t bytes;
  } sizes[] = {{"0", 0},       {"4096", 4096},   {"1B", 1},        {"64K", 65536},
               {"64k", 65536}, {"64KiB", 65536}, {"2M", 2u << 20}, {"3GiB", 3ull << 30}};
  for (auto& s : sizes) {
    auto parsed = parse_size("X", s.text);
    ASSERT_TRUE(parsed.ok()) << s.text;
    EXPECT_EQ(*parsed, s.bytes);
  }
  struct {
    const char* text;
    int64_t ns;
  } durations[] = {{"90", 90'000'000'000},   {"1s", 1'000'000'000},   {"5us", 5000},
                   {"250ms", 250'000'000},   {"2m", 120'000'000'000}, {"2min", 120'000'000'000},
                   {"1h", 3'600'000'000'000}};
  for (auto& d : durations) {
    auto parsed = parse_duration("X", d.text);
    ASSERT_TRUE(parsed.ok()) << d.text;
    EXPECT_EQ(*parsed, d.ns);
  }
  for (const char* bad : {"", " ", "K", "1 K", "1KB", "0x10", "1e3", "+1", "1.5G", "ms", "1d"}) {
    EXPECT_FALSE(parse_size("X", bad).ok()) << bad;
    EXPECT_FALSE(parse_duration("X", bad).ok()) << bad;
  }
  EXPECT_TRUE(parse_size("X", "18446744073709551615").ok());
  EXPECT_FALSE(parse_size("X", "18446744073709551616").ok());
}

TEST(Settings, TheSizeOfSegmentsCanBeLeftToUs) {
  auto s = parse({{"CKPT_SEGMENT", "auto"}});
  ASSERT_TRUE(s.ok());
  EXPECT_TRUE(s->segment_auto);
  EXPECT_EQ(s->segment_bytes, 64u << 10);
  EXPECT_FALSE(parse({{"CKPT_SEGMENT", "automatic"}}).ok());
  EXPECT_FALSE(parse({})->segment_auto);
}

TEST(Settings, SavedFiles) {
  EXPECT_EQ(parse({})->files, SavedFiles::kAuto);
  EXPECT_EQ(parse({{"CKPT_FILES", "none"}})->files, SavedFiles::kNone);
  EXPECT_EQ(parse({{"CKPT_FILES", "links"}})->files, SavedFiles::kLinks);
  EXPECT_EQ(parse({{"CKPT_FILES", "copies"}})->files, SavedFiles::kCopies);
  EXPECT_FALSE(parse({{"CKPT_FILES", "all"}}).ok());
}

std::string printed(const char* variable, const Settings& settings) {
  SettingText out;
  find_setting(variable)->print(settings, out);
  return out.text;
}

TEST(SettingsTable, WhatIsPrintedCanBeReadAgain) {
  const std::pair<const char*, const char*> values[] = {{"CKPT_DIR", "/images"},
                                                        {"CKPT_TO", "cat > x"},
                                                        {"CKPT_EVERY", "0"},
                                                        {"CKPT_EVERY", "250ms"},
                                                        {"CKPT_EVERY", "5m"},
                                                        {"CKPT_EVERY", "90s"},
                                                        {"CKPT_EVERY", "auto"},
                                                        {"CKPT_MTBF", "6h"},
                                                        {"CKPT_MODE", "realtime-large"},
                                                        {"CKPT_FAULTS", "mprotect"},
                                                        {"CKPT_SEGMENT", "auto"},
                                                        {"CKPT_SEGMENT", "4K"},
                                                        {"CKPT_POOL", "128M"},
                                                        {"CKPT_COMPRESS", "zstd:7"},
                                                        {"CKPT_COMPRESS", "auto"},
                                                        {"CKPT_KEY_FILE", "key"},
                                                        {"CKPT_SIGNAL", "40"},
                                                        {"CKPT_LEAVE_OUT", "a,b"},
                                                        {"CKPT_STOP_TIMEOUT", "1h"},
                                                        {"CKPT_PREPARE_TIMEOUT", "20s"},
                                                        {"CKPT_KEEP", "0"},
                                                        {"CKPT_FILES", "copies"},
                                                        {"CKPT_ENGINE", "cpu"},
                                                        {"CKPT_ENGINE", "dma:800M:50:4K"},
                                                        {"CKPT_INCREMENTS", "254"},
                                                        {"CKPT_ORDER", "hot"},
                                                        {"CKPT_HEAP", "jemalloc:huge"},
                                                        {"CKPT_LOG", "0"},
                                                        {"CKPT_DISABLE", "1"}};
  std::map<std::string, int> seen;
  for (const auto& [variable, text] : values) {
    ASSERT_NE(find_setting(variable), nullptr) << variable;
    auto s = parse({{variable, text}});
    ASSERT_TRUE(s.ok()) << variable << "=" << text << ": " << s.error().message();
    EXPECT_EQ(printed(variable, *s), text) << variable;
    ++seen[variable];
  }
  EXPECT_EQ(seen.size(), setting_table().size()) << "each setting has a value here";
}

TEST(SettingsTable, EachDefaultIsAccepted) {
  for (const Setting& setting : setting_table()) {
    const std::string text = printed(setting.variable, Settings{});
    EXPECT_EQ(text.empty(), setting.when_empty != nullptr) << setting.variable;
    auto s = parse({{setting.variable, text}});
    ASSERT_TRUE(s.ok()) << setting.variable << ": " << s.error().message();
    EXPECT_EQ(printed(setting.variable, *s), text) << setting.variable;
  }
}

TEST(SettingsTable, WordsNameTheBoundsThatTheParserHas) {
  for (const Setting& setting : setting_table()) {
    SettingText accepted;
    accepted_by(setting, accepted);
    const std::string words = accepted.text;
    ASSERT_FALSE(words.empty()) << setting.variable;
    for (const Choice& c : setting.choices)
      EXPECT_NE(words.find(c.name), std::string::npos) << setting.variable << " accepts " << c.name;
  }
  const struct {
    const char *variable, *least, *most, *below, *above;
  } bounds[] = {{"CKPT_SEGMENT", "4K", "256K", "2K", "512K"},
                {"CKPT_POOL", "16 segments", "64G", "512K", "65G"},
                {"CKPT_SIGNAL", "34", "64", "33", "65"},
                {"CKPT_STOP_TIMEOUT", "1ms", nullptr, "999us", nullptr},
                {"CKPT_PREPARE_TIMEOUT", "1ms", nullptr, "999us", nullptr},
                {"CKPT_EVERY", "1ms", nullptr, "999us", nullptr},
                {"CKPT_KEEP", "0", "1024", nullptr, "1025"},
                {"CKPT_INCREMENTS", "0", "254", nullptr, "255"},
                {"CKPT_COMPRESS", "zstd:1", "zstd:19", "zstd:0", "zstd:20"}};
  for (const auto& b : bounds) {
    SettingText accepted;
    accepted_by(*find_setting(b.variable), accepted);
    const std::string words = accepted.text;
    for (const char* inside : {b.least, b.most}) {
      if (inside == nullptr) continue;
      EXPECT_NE(words.find(inside), std::string::npos) << b.variable << " has the bound " << inside;
      if (std::string(inside) == "16 segments") continue;
      EXPECT_TRUE(parse({{b.variable, inside}}).ok()) << b.variable << "=" << inside;
    }
    for (const char* outside : {b.below, b.above}) {
      if (outside == nullptr) continue;
      EXPECT_FALSE(parse({{b.variable, outside}}).ok()) << b.variable << "=" << outside;
    }
  }
}

// Whatever the text, there is an answer, and what is accepted keeps the documented bounds.
TEST(Settings, AnyTextIsAnswered) {
  const char* names[] = {"CKPT_DIR",    "CKPT_EVERY",        "CKPT_MODE", "CKPT_SEGMENT",    "CKPT_POOL",
                         "CKPT_SIGNAL", "CKPT_STOP_TIMEOUT", "CKPT_KEEP", "CKPT_INCREMENTS", "CKPT_ENGINE"};
  const char alphabet[] = "0123456789kKmMgGhsuin B-./autoforkx\xff\n";
  std::mt19937 random(4711);
  for (int i = 0; i < 20'000; ++i) {
    Variables v;
    for (const char* name : names) {
      if (random() % 2 != 0) continue;
      std::string text(random() % 8, ' ');
      for (char& c : text) c = alphabet[random() % (sizeof(alphabet) - 1)];
      v[name] = text;
    }
    auto s = parse(v);
    if (!s.ok()) {
      ASSERT_FALSE(s.error().message().empty());
      continue;
    }
    ASSERT_GE(s->pool_bytes, 16 * s->segment_bytes);
    ASSERT_EQ(s->segment_bytes & (s->segment_bytes - 1), 0u);
    ASSERT_TRUE(s->every_ns == 0 || s->every_ns >= 1'000'000);
    ASSERT_GE(s->stop_timeout_ns, 1'000'000);
    ASSERT_TRUE(s->signal >= 1 && s->signal <= 64);
  }
}

}  // namespace
}  // namespace ckpt
