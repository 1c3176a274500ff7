// SPDX-License-Identifier: Apache-2.0
// The gate: who gets at which bytes with which key.
#include "engine/memory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <deque>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/guarded.hpp"
#include "base/prng.hpp"

namespace adverb::engine {
namespace {

constexpr std::uint32_t all_rights =
    access_local_write | access_remote_write | access_remote_read | access_remote_atomic;
constexpr std::uint64_t top = ~std::uint64_t{0};

std::uint64_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

// A table, and a region of one PD over a buffer of its own.
struct Memory : testing::Test {
  KeyTable table{64, 1234};
  std::array<std::byte, 256> bytes{};

  MemoryRegion* add(std::uint32_t access, PdId pd = 1) {
    return table.add({.iova = address_of(bytes.data()),
                      .length = bytes.size(),
                      .base = bytes.data(),
                      .access = access,
                      .pd = pd});
  }
  std::optional<KeyError> error(std::uint32_t key, PdId pd, std::uint64_t address,
                                std::uint64_t length, std::uint32_t access) const {
    const auto grant = table.resolve(key, pd, address, length, access);
    return grant ? std::nullopt : std::optional(grant.error());
  }
};

TEST_F(Memory, AGrantIsTheBytesThatWereAskedFor) {
  const auto* region = add(all_rights);
  const auto grant = table.resolve(region->key, 1, region->iova + 10, 20, access_remote_write);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->data, bytes.data() + 10);
  EXPECT_EQ(grant->length, 20u);
  EXPECT_TRUE(grant->copy_in(4, "abc", 3));
  EXPECT_EQ(std::memcmp(bytes.data() + 14, "abc", 3), 0);
  char out[3];
  EXPECT_TRUE(grant->copy_out(5, out, 2));
  EXPECT_EQ(std::memcmp(out, "bc", 2), 0);
}

TEST_F(Memory, CopyingOutsideAGrantIsOurBug) {
  const auto* region = add(all_rights);
  const auto grant = *table.resolve(region->key, 1, region->iova, 16, 0);
  char c[32]{};
  EXPECT_DEATH((void)grant.copy_in(10, c, 7), "");
  EXPECT_DEATH((void)grant.copy_out(17, c, 0), "");
  EXPECT_DEATH((void)grant.copy_out(top, c, 2), "");
}

TEST_F(Memory, C47_RightsAreASubsetTest) {
  for (std::uint32_t has = 0; has < 16; ++has)
    for (std::uint32_t wants = 0; wants < 16; ++wants) {
      const auto* region = add(has);
      const auto expected =
          (has & wants) == wants ? std::nullopt : std::optional(KeyError::bad_access);
      EXPECT_EQ(error(region->key, 1, region->iova, 8, wants), expected) << has << ' ' << wants;
      table.remove(*table.find(region->key));
    }
}

TEST_F(Memory, C49_ProtectionDomainsAreApart) {
  const auto* mine = add(all_rights, 1);
  const auto* other = add(all_rights, 2);
  EXPECT_EQ(error(other->key, 1, other->iova, 8, 0), KeyError::bad_pd);
  EXPECT_EQ(error(mine->key, 2, mine->iova, 8, 0), KeyError::bad_pd);
  EXPECT_EQ(error(mine->key, 0, mine->iova, 8, 0), KeyError::bad_pd);
  char from[8] = "stolen!";
  const Sge sge{.addr = other->iova, .length = 8, .lkey = other->key};
  EXPECT_EQ(scatter(table, 1, {&sge, 1}, 0, from, 8), SgStatus::protection);
  EXPECT_EQ(gather(table, 1, {&sge, 1}, 0, from, 8), SgStatus::protection);
  EXPECT_EQ(bytes[0], std::byte{0});
  EXPECT_STREQ(from, "stolen!");
}

// What can be told from the rights alone.
TEST(Access, C54_RemoteChangeNeedsLocalWrite) {
  EXPECT_FALSE(valid_access(access_remote_write));
  EXPECT_FALSE(valid_access(access_remote_atomic | access_remote_read));
  EXPECT_TRUE(valid_access(access_remote_write | access_local_write));
  EXPECT_TRUE(valid_access(access_remote_read));
  EXPECT_TRUE(valid_access(0));
}

TEST_F(Memory, RangesEndWhereTheRegionEnds) {
  const auto* r = add(all_rights);
  const std::uint64_t begin = r->iova, n = r->length;
  EXPECT_EQ(error(r->key, 1, begin, n, 0), std::nullopt);
  EXPECT_EQ(error(r->key, 1, begin + n - 1, 1, 0), std::nullopt);
  for (const auto& [address, length] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {begin, n + 1},
           {begin + 1, n},
           {begin + n, 1},
           {begin - 1, 1},
           {begin - 1, n},
           {0, 1},
           {top, 1},
           {top, 2},
           {begin, top},
           {begin + 1, top},
           {begin + 8, top - 7},  // comes out at `begin` when it wraps
           {begin + 8, std::uint64_t{1} << 63},
           {begin, (std::uint64_t{1} << 32) + 8},
           {begin + (std::uint64_t{1} << 63), 8},
           {begin - 8, top}})
    EXPECT_EQ(error(r->key, 1, address, length, 0), KeyError::bad_range)
        << std::hex << address << ' ' << length;
}

TEST_F(Memory, ARangeOfNothingNeedsOnlyAGoodKey) {
  const auto* r = add(access_remote_read);
  for (const std::uint64_t address : {r->iova, r->iova + 1000, std::uint64_t{0}, top})
    EXPECT_EQ(error(r->key, 1, address, 0, access_remote_read), std::nullopt);
  EXPECT_EQ(error(r->key ^ 1, 1, r->iova, 0, 0), KeyError::bad_key);
  EXPECT_EQ(error(r->key, 2, r->iova, 0, 0), KeyError::bad_pd);
  EXPECT_EQ(error(r->key, 1, r->iova, 0, access_remote_write), KeyError::bad_access);
}

TEST_F(Memory, AnIovaIsItsOwnAddressSpace) {
  const auto* r = table.add(
      {.iova = 0x1000, .length = 64, .base = bytes.data(), .access = all_rights, .pd = 1});
  const auto grant = table.resolve(r->key, 1, 0x1008, 8, 0);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->data, bytes.data() + 8);
  EXPECT_EQ(error(r->key, 1, address_of(bytes.data()), 8, 0), KeyError::bad_range);
}

TEST_F(Memory, ZeroBasedRegionsStartAtZero) {
  const auto* r = table.add({.iova = address_of(bytes.data()),
                             .length = 64,
                             .base = bytes.data(),
                             .access = all_rights | access_zero_based,
                             .pd = 1});
  const auto grant = table.resolve(r->key, 1, 0, 64, access_remote_write);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->data, bytes.data());
  EXPECT_EQ(error(r->key, 1, 1, 64, 0), KeyError::bad_range);
  EXPECT_EQ(error(r->key, 1, top, 1, 0), KeyError::bad_range);
  EXPECT_EQ(error(r->key, 1, address_of(bytes.data()), 8, 0), KeyError::bad_range);
}

// A region may end with the address space but no range may run over it.
TEST_F(Memory, NothingWrapsAtTheTopOfTheAddressSpace) {
  const auto* r =
      table.add({.iova = top - 63, .length = 128, .base = bytes.data(), .access = 0, .pd = 1});
  EXPECT_EQ(error(r->key, 1, top - 63, 64, 0), std::nullopt);
  EXPECT_EQ(error(r->key, 1, top, 1, 0), std::nullopt);
  EXPECT_EQ(error(r->key, 1, top - 63, 65, 0), KeyError::bad_range);
  EXPECT_EQ(error(r->key, 1, 0, 1, 0), KeyError::bad_range);
}

TEST_F(Memory, KeysEndWithTheirRegion) {
  auto* r = add(all_rights);
  const std::uint32_t key = r->key;
  EXPECT_EQ(table.find(key), r);
  EXPECT_EQ(table.size(), 1u);
  table.remove(*r);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.find(key), nullptr);
  EXPECT_EQ(error(key, 1, 0, 0, 0), KeyError::bad_key);
  EXPECT_EQ(error(0, 0, 0, 0, 0), KeyError::bad_key);
  EXPECT_EQ(error(~0u, 0, 0, 0, 0), KeyError::bad_key);
}

TEST_F(Memory, InvalidationStopsTheKeyAndKeepsThePlace) {
  auto* plain = add(all_rights);
  auto* window = add(all_rights);
  window->invalidatable = true;
  const std::uint32_t key = window->key;
  EXPECT_FALSE(table.invalidate(plain->key, 1)) << "not every key may be invalidated";
  EXPECT_FALSE(table.invalidate(key, 2)) << "nor by everyone";
  EXPECT_FALSE(table.invalidate(key ^ 0x100, 1));
  EXPECT_EQ(error(key, 1, window->iova, 8, 0), std::nullopt);
  EXPECT_TRUE(table.invalidate(key, 1));
  EXPECT_EQ(error(key, 1, window->iova, 8, 0), KeyError::bad_key);
  EXPECT_FALSE(table.invalidate(key, 1));
  EXPECT_EQ(table.size(), 2u);
  table.remove(*window);
  EXPECT_EQ(table.size(), 1u);
}

TEST(KeyTable, IsFullAtCapacityAndUsableAfter) {
  KeyTable table(4, 9);
  std::array<MemoryRegion*, 4> regions{};
  for (auto& r : regions) ASSERT_NE(r = table.add({.pd = 1}), nullptr);
  EXPECT_EQ(table.add({.pd = 1}), nullptr);
  table.remove(*regions[2]);
  EXPECT_EQ(table.add({.pd = 1}), regions[2]);
  EXPECT_EQ(table.add({.pd = 1}), nullptr);
}

TEST(KeyTable, FreedPlacesWaitTheirTurn) {
  KeyTable table(8, 9);
  std::vector<MemoryRegion*> regions;
  for (int i = 0; i < 6; ++i) regions.push_back(table.add({.pd = 1}));
  MemoryRegion* const first = regions[3];
  table.remove(*first);
  table.remove(*regions[1]);
  for (int i = 0; i < 2; ++i) EXPECT_NE(table.add({.pd = 1}), first) << "unused places go first";
  EXPECT_EQ(table.add({.pd = 1}), first);
  EXPECT_EQ(table.add({.pd = 1}), regions[1]);
}

// A region that is registered over and over in a small table: the key of the latest registrations
// never works again at once.
TEST(KeyTable, KeysAreNotReusedAtOnce) {
  KeyTable table(16, 77);
  std::deque<std::uint32_t> recent;
  for (int i = 0; i < 100'000; ++i) {
    auto* r = table.add({.pd = 1});
    EXPECT_NE(r->key, 0u);
    EXPECT_NE(r->key, ~0u);
    ASSERT_EQ(std::count(recent.begin(), recent.end(), r->key), 0);
    recent.push_back(r->key);
    if (recent.size() > 16) recent.pop_front();
    table.remove(*r);
    for (const std::uint32_t old : recent) ASSERT_EQ(table.find(old), nullptr);
  }
}

TEST(KeyTable, AllKeysOfAFullTableDifferAndAreFound) {
  for (const std::uint32_t capacity : {1u, 2u, 1024u, 1u << 20}) {
    KeyTable table(capacity, capacity);
    std::unordered_set<std::uint32_t> uppers;
    bool found = true;
    for (std::uint32_t i = 0; i < capacity; ++i) {
      auto* r = table.add({.pd = 1});
      found = found && r && table.find(r->key) == r;
      uppers.insert(r->key >> 8);
    }
    EXPECT_TRUE(found) << capacity;
    EXPECT_EQ(uppers.size(), capacity);
  }
}

// Whatever index the two special keys would decode to, in an empty table or one whose key was
// invalidated.
TEST(KeyTable, ZeroAndAllOnesAreNeverKeys) {
  for (std::uint64_t secret = 0; secret < 200; ++secret) {
    KeyTable table(1 << 20, secret);
    table.add({.pd = 1, .invalidatable = true});
    EXPECT_EQ(table.find(0), nullptr) << secret;
    EXPECT_EQ(table.find(~0u), nullptr) << secret;
  }
}

TEST(KeyTable, KeysDependOnTheSecret) {
  std::set<std::uint32_t> first_keys;
  for (std::uint64_t secret = 0; secret < 100; ++secret)
    first_keys.insert(KeyTable(16, secret).add({.pd = 1})->key);
  EXPECT_GT(first_keys.size(), 95u);
}

// No pattern that lets the next key be told from the one before.
TEST(KeyTable, NeighboursHaveUnrelatedKeys) {
  KeyTable table(1 << 12, 5);
  std::set<std::uint32_t> distances;
  std::uint32_t last = 0;
  for (int i = 0; i < 1 << 12; ++i) {
    const std::uint32_t upper = table.add({.pd = 1})->key >> 8;
    distances.insert((upper - last) & 0xffffff);
    last = upper;
  }
  EXPECT_GT(distances.size(), 4000u);
}

// ---- Scatter and gather
// -------------------------------------------------------------------------------------

struct Lists : Memory {
  MemoryRegion* region = add(all_rights);
  std::uint64_t begin = region->iova;
  Sge piece(std::uint64_t offset, std::uint32_t length) {
    return {.addr = begin + offset, .length = length, .lkey = region->key};
  }
  void SetUp() override {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i);
  }
};

TEST_F(Lists, EveryOffsetAndLengthGathersAndScattersTheSameBytes) {
  const std::array list{piece(100, 5), piece(0, 1), piece(7, 0), piece(30, 17), piece(200, 8)};
  std::vector<std::byte> message;
  std::vector<std::size_t> places;
  for (const Sge& sge : list)
    for (std::uint32_t i = 0; i < sge.length; ++i) places.push_back(sge.addr - begin + i);
  for (const std::size_t p : places) message.push_back(std::byte(p));
  for (std::size_t offset = 0; offset <= message.size(); ++offset)
    for (std::size_t n = 0; offset + n <= message.size(); ++n) {
      std::array<std::byte, 40> out{};
      ASSERT_EQ(gather(table, 1, list, offset, out.data(), n), SgStatus::ok);
      ASSERT_TRUE(std::equal(out.begin(), out.begin() + n, message.begin() + offset));
      ASSERT_EQ(out[n], std::byte{0});
      SetUp();
      auto expected = bytes;
      std::array<std::byte, 40> in;
      in.fill(std::byte{0xee});
      for (std::size_t i = 0; i < n; ++i) expected[places[offset + i]] = in[i];
      ASSERT_EQ(scatter(table, 1, list, offset, in.data(), n), SgStatus::ok);
      ASSERT_EQ(bytes, expected) << offset << ' ' << n;
      SetUp();
    }
}

TEST_F(Lists, TooShortMovesNothing) {
  const std::array list{piece(0, 4), piece(8, 4)};
  std::array<std::byte, 16> buffer{};
  EXPECT_EQ(scatter(table, 1, list, 0, buffer.data(), 9), SgStatus::too_short);
  EXPECT_EQ(scatter(table, 1, list, 8, buffer.data(), 1), SgStatus::too_short);
  EXPECT_EQ(scatter(table, 1, list, top, buffer.data(), 2), SgStatus::too_short);
  EXPECT_EQ(scatter(table, 1, {}, 0, buffer.data(), 1), SgStatus::too_short);
  EXPECT_EQ(bytes[1], std::byte{1});
  EXPECT_EQ(scatter(table, 1, {}, 0, nullptr, 0), SgStatus::ok);
  EXPECT_EQ(gather(table, 1, list, 8, nullptr, 0), SgStatus::ok);
}

TEST_F(Lists, ScatterNeedsLocalWriteAndGatherNeedsNoRight) {
  const auto* read_only = add(0);
  const Sge sge{.addr = read_only->iova, .length = 8, .lkey = read_only->key};
  std::array<std::byte, 8> buffer{};
  EXPECT_EQ(gather(table, 1, {&sge, 1}, 0, buffer.data(), 8), SgStatus::ok);
  EXPECT_EQ(buffer[7], std::byte{7});
  buffer.fill(std::byte{0xee});
  EXPECT_EQ(scatter(table, 1, {&sge, 1}, 0, buffer.data(), 8), SgStatus::protection);
  EXPECT_EQ(bytes[0], std::byte{0});
}

TEST_F(Lists, OnlyElementsThatAreTouchedAreLookedAt) {
  std::array<std::byte, 8> buffer{};
  const Sge bad{.addr = begin, .length = 4, .lkey = region->key ^ 1};
  const Sge nothing{.addr = 1, .length = 0, .lkey = 0};
  const std::array list{bad, nothing, piece(0, 8), bad};
  EXPECT_EQ(gather(table, 1, list, 4, buffer.data(), 8), SgStatus::ok);
  EXPECT_EQ(gather(table, 1, list, 3, buffer.data(), 8), SgStatus::protection);
  EXPECT_EQ(gather(table, 1, list, 5, buffer.data(), 8), SgStatus::protection);
}

TEST_F(Lists, WhatIsGatheredLiesInItsRegionAsAWhole) {
  std::array<std::byte, 8> buffer{};
  const std::array over{piece(250, 7)};
  EXPECT_EQ(gather(table, 1, over, 0, buffer.data(), 1), SgStatus::protection);
}

TEST_F(Lists, OnlyTheBytesThatAreScatteredMustLieInTheRegion) {
  const std::array<std::byte, 8> buffer{std::byte{0xa1}, std::byte{0xa2}, std::byte{0xa3}};
  const std::array over{piece(250, 100)};
  EXPECT_EQ(scatter(table, 1, over, 0, buffer.data(), 2), SgStatus::ok);
  EXPECT_EQ(scatter(table, 1, over, 5, buffer.data() + 2, 1), SgStatus::ok);
  EXPECT_EQ(bytes[250], std::byte{0xa1});
  EXPECT_EQ(bytes[251], std::byte{0xa2});
  EXPECT_EQ(bytes[252], std::byte{252});
  EXPECT_EQ(bytes[255], std::byte{0xa3});
  EXPECT_EQ(scatter(table, 1, over, 5, buffer.data(), 2), SgStatus::protection);
  EXPECT_EQ(scatter(table, 1, over, 6, buffer.data(), 1), SgStatus::protection);
  EXPECT_EQ(bytes[255], std::byte{0xa3});
  const std::array wraps{Sge{.addr = top - 3, .length = 8, .lkey = region->key}};
  EXPECT_EQ(scatter(table, 1, wraps, 0, buffer.data(), 8), SgStatus::protection);
}

// ---- Memory that the application has taken away
// -------------------------------------------------------------

class Faults : public testing::Test {
 protected:
  static constexpr std::size_t page = 4096;
  void SetUp() override {
    struct sigaction action{};
    action.sa_sigaction = [](int signal, siginfo_t*, void* context) {
      if (!guarded_recover(context)) std::signal(signal, SIG_DFL);
    };
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &old_segv_);
    sigaction(SIGBUS, &action, &old_bus_);
    map_ = static_cast<std::byte*>(
        mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(map_, MAP_FAILED);
    region_ = table_.add({.iova = address_of(map_),
                          .length = 2 * page,
                          .base = map_,
                          .access = all_rights,
                          .pd = 1});
  }
  void TearDown() override {
    munmap(map_, 2 * page);
    sigaction(SIGSEGV, &old_segv_, nullptr);
    sigaction(SIGBUS, &old_bus_, nullptr);
  }
  KeyTable table_{8, 3};
  std::byte* map_{};
  MemoryRegion* region_{};

 private:
  struct sigaction old_segv_{}, old_bus_{};
};

TEST_F(Faults, AGrantSurvivesAnUnmappedPage) {
  const auto grant = table_.resolve(region_->key, 1, region_->iova, 2 * page, access_remote_write);
  ASSERT_TRUE(grant);
  munmap(map_ + page, page);
  char text[] = "0123456789abcdef";
  EXPECT_TRUE(grant->copy_in(page - 16, text, 16));
  EXPECT_FALSE(grant->copy_in(page - 5, text, 16));
  EXPECT_EQ(std::memcmp(map_ + page - 5, "01234", 5), 0) << "what came before the fault stays";
  EXPECT_FALSE(grant->copy_out(page, text, 1));
  EXPECT_FALSE(grant->copy_out(page - 1, text, 16));
  EXPECT_EQ(text[1], '1');
}

TEST_F(Faults, ListsReportAFault) {
  mprotect(map_ + page, page, PROT_READ);
  const std::array list{
      Sge{.addr = region_->iova, .length = 4, .lkey = region_->key},
      Sge{.addr = region_->iova + page, .length = 4, .lkey = region_->key},
      Sge{.addr = region_->iova + 8, .length = 4, .lkey = region_->key},
  };
  std::array<char, 12> text{"abcdefghijk"};
  EXPECT_EQ(scatter(table_, 1, list, 0, text.data(), 12), SgStatus::fault);
  EXPECT_EQ(std::memcmp(map_, "abcd", 4), 0);
  EXPECT_EQ(map_[8], std::byte{0}) << "nothing behind the fault";
  EXPECT_EQ(gather(table_, 1, list, 0, text.data(), 12), SgStatus::ok);
  mprotect(map_ + page, page, PROT_NONE);
  EXPECT_EQ(gather(table_, 1, list, 0, text.data(), 12), SgStatus::fault);
}

// ---- A million operations against a map
// ---------------------------------------------------------------------

// What the table should hold, found by exhaustive and obvious means (128-bit sums instead of
// tricks).
class Shadow {
 public:
  using Wide = unsigned __int128;
  std::unordered_map<std::uint32_t, MemoryRegion> live;

  std::optional<KeyError> expected(std::uint32_t key, PdId pd, std::uint64_t address,
                                   std::uint64_t length, std::uint32_t access) const {
    const auto it = live.find(key);
    if (it == live.end()) return KeyError::bad_key;
    const MemoryRegion& r = it->second;
    if (r.pd != pd) return KeyError::bad_pd;
    if (~r.access & access) return KeyError::bad_access;
    if (length == 0) return std::nullopt;
    const Wide low = r.iova, high = low + r.length;
    if (address < low || Wide(address) + length > high) return KeyError::bad_range;
    return std::nullopt;
  }
};

// Numbers where mistakes are made: near the ends of the region, of 32 and of 64 bits.
std::uint64_t nasty(Prng& random, const MemoryRegion& near) {
  const std::uint64_t anchors[] = {0,
                                   near.iova,
                                   near.iova + near.length,
                                   near.length,
                                   std::uint64_t{1} << 32,
                                   std::uint64_t{1} << 63,
                                   top};
  const std::uint64_t anchor = anchors[random.below(std::size(anchors))];
  return anchor + random.below(5) - 2;
}

TEST(KeyTable, AMillionOperationsAgreeWithAMap) {
  Prng random(2024);
  KeyTable table(256, random.next());
  Shadow shadow;
  std::vector<std::uint32_t> keys, dead;
  for (int step = 0; step < 1'000'000; ++step) {
    const std::uint64_t choice = random.below(100);
    if (choice < 10) {
      MemoryRegion r{.length = random.below(1 << random.between(1, 30)),
                     .access = static_cast<std::uint32_t>(random.below(16)),
                     .pd = static_cast<PdId>(random.between(1, 3)),
                     .invalidatable = random.chance(1, 2)};
      // Anywhere, also up to the very end of the address space.
      r.iova = random.chance(1, 4) ? top - r.length + 1 : random.next() >> random.between(1, 63);
      if (r.iova > top - r.length) r.iova = top - r.length;
      r.base = reinterpret_cast<std::byte*>(0x10000);
      MemoryRegion* added = table.add(r);
      ASSERT_EQ(added != nullptr, keys.size() < 256);
      if (!added) continue;
      r.key = added->key;
      ASSERT_TRUE(shadow.live.emplace(r.key, r).second) << "key of a live region handed out";
      keys.push_back(r.key);
    } else if (choice < 18 && !keys.empty()) {
      const std::size_t at = random.below(keys.size());
      table.remove(*table.find(keys[at]));
      dead.push_back(keys[at]);
      shadow.live.erase(keys[at]);
      keys.erase(keys.begin() + at);
    } else if (!keys.empty()) {
      const std::uint32_t known = keys[random.below(keys.size())];
      std::uint32_t key = known;
      if (random.chance(1, 10)) key ^= 1u << random.below(32);
      if (random.chance(1, 10) && !dead.empty()) key = dead[random.below(dead.size())];
      const MemoryRegion& r = shadow.live.at(known);
      const std::uint64_t address = nasty(random, r), length = nasty(random, r);
      const PdId pd = random.chance(1, 10) ? 9 : r.pd;
      const std::uint32_t access = random.below(16) & (random.chance(9, 10) ? r.access : 15);
      const auto expected = shadow.expected(key, pd, address, length, access);
      const auto grant = table.resolve(key, pd, address, length, access);
      ASSERT_EQ(grant ? std::nullopt : std::optional(grant.error()), expected)
          << "step " << step << std::hex << " address " << address << " length " << length;
      if (grant && length) {
        ASSERT_EQ(grant->data, r.base + (address - r.iova));
        ASSERT_EQ(grant->length, length);
      }
    }
    ASSERT_EQ(table.size(), keys.size());
  }
}

}  // namespace
}  // namespace adverb::engine
