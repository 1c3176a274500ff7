// SPDX-License-Identifier: Apache-2.0
// Which modify_qp calls are accepted.  The expectations are written as ibv_modify_qp(3) and the
// specification's tables print them (attribute by attribute), not as the implementation groups
// them.
#include "engine/qp_state.hpp"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace adverb::engine {
namespace {

using Kind = TransitionError::Kind;
constexpr QpType rc = QpType::rc, uc = QpType::uc, ud = QpType::ud;
using enum QpState;

struct Attributes {
  std::vector<std::uint32_t> required, optional;
};
using Key = std::tuple<QpType, QpState, QpState>;

// One entry per line of the tables.  Transitions that take no attribute but the state: see bare().
const std::map<Key, Attributes>& expectations() {
  static const std::map<Key, Attributes> table{
      // RESET -> INIT
      {{rc, reset, init}, {{attr_pkey_index, attr_port, attr_access_flags}, {}}},
      {{uc, reset, init}, {{attr_pkey_index, attr_port, attr_access_flags}, {}}},
      {{ud, reset, init}, {{attr_pkey_index, attr_port, attr_qkey}, {}}},
      // INIT -> INIT
      {{rc, init, init}, {{}, {attr_pkey_index, attr_port, attr_access_flags}}},
      {{uc, init, init}, {{}, {attr_pkey_index, attr_port, attr_access_flags}}},
      {{ud, init, init}, {{}, {attr_pkey_index, attr_port, attr_qkey}}},
      // INIT -> RTR
      {{rc, init, rtr},
       {{attr_av, attr_path_mtu, attr_dest_qpn, attr_rq_psn, attr_max_dest_rd_atomic,
         attr_min_rnr_timer},
        {attr_alt_path, attr_access_flags, attr_pkey_index}}},
      {{uc, init, rtr},
       {{attr_av, attr_path_mtu, attr_dest_qpn, attr_rq_psn},
        {attr_alt_path, attr_access_flags, attr_pkey_index}}},
      {{ud, init, rtr}, {{}, {attr_pkey_index, attr_qkey}}},
      // RTR -> RTS
      {{rc, rtr, rts},
       {{attr_sq_psn, attr_max_qp_rd_atomic, attr_retry_cnt, attr_rnr_retry, attr_timeout},
        {attr_cur_state, attr_alt_path, attr_access_flags, attr_min_rnr_timer,
         attr_path_mig_state}}},
      {{uc, rtr, rts},
       {{attr_sq_psn}, {attr_cur_state, attr_alt_path, attr_access_flags, attr_path_mig_state}}},
      {{ud, rtr, rts}, {{attr_sq_psn}, {attr_cur_state, attr_qkey}}},
      // RTS -> RTS
      {{rc, rts, rts},
       {{},
        {attr_cur_state, attr_access_flags, attr_alt_path, attr_path_mig_state,
         attr_min_rnr_timer}}},
      {{uc, rts, rts},
       {{}, {attr_cur_state, attr_access_flags, attr_alt_path, attr_path_mig_state}}},
      {{ud, rts, rts}, {{}, {attr_cur_state, attr_qkey}}},
      // RTS -> SQD
      {{rc, rts, sqd}, {{}, {attr_en_sqd_async_notify}}},
      {{uc, rts, sqd}, {{}, {attr_en_sqd_async_notify}}},
      {{ud, rts, sqd}, {{}, {attr_en_sqd_async_notify}}},
      // SQD -> RTS
      {{rc, sqd, rts},
       {{},
        {attr_cur_state, attr_alt_path, attr_access_flags, attr_min_rnr_timer,
         attr_path_mig_state}}},
      {{uc, sqd, rts},
       {{}, {attr_cur_state, attr_alt_path, attr_access_flags, attr_path_mig_state}}},
      {{ud, sqd, rts}, {{}, {attr_cur_state, attr_qkey}}},
      // SQD -> SQD
      {{rc, sqd, sqd},
       {{},
        {attr_port, attr_av, attr_timeout, attr_retry_cnt, attr_rnr_retry, attr_max_qp_rd_atomic,
         attr_max_dest_rd_atomic, attr_alt_path, attr_access_flags, attr_pkey_index,
         attr_min_rnr_timer, attr_path_mig_state}}},
      {{uc, sqd, sqd},
       {{}, {attr_av, attr_alt_path, attr_access_flags, attr_pkey_index, attr_path_mig_state}}},
      {{ud, sqd, sqd}, {{}, {attr_pkey_index, attr_qkey}}},
      // SQE -> RTS
      {{uc, sqe, rts}, {{}, {attr_cur_state, attr_access_flags}}},
      {{ud, sqe, rts}, {{}, {attr_cur_state, attr_qkey}}},
  };
  return table;
}

// Any state -> RESET; any state but RESET -> ERR.
bool bare(QpState from, QpState to) { return to == reset || (to == error && from != reset); }

constexpr QpState states[] = {reset, init, rtr, rts, sqd, sqe, error};

std::uint32_t mask_of(const std::vector<std::uint32_t>& attributes) {
  std::uint32_t mask = 0;
  for (const std::uint32_t a : attributes) mask |= a;
  return mask;
}

std::string words(QpType type, QpState from, QpState to) {
  const char* types[] = {"", "", "RC ", "UC ", "UD "};
  return types[static_cast<int>(type)] + std::string(name_of(from)) + " -> " + name_of(to);
}

void expect(QpType type, QpState from, QpState to, std::uint32_t mask, Kind kind,
            std::uint32_t in_question) {
  const TransitionError e = check_transition(type, from, to, mask);
  EXPECT_EQ(e.kind, kind) << words(type, from, to) << " mask " << std::hex << mask;
  EXPECT_EQ(e.mask, in_question) << words(type, from, to) << " mask " << std::hex << mask;
}

// Every type, every pair of states: exactly the required set, all of the optional ones, each
// required one missing, each other bit of the word added.
TEST(QpState, EveryTransitionWithEveryMissingAndEveryExtraAttribute) {
  int transitions = 0;
  for (const QpType type : {rc, uc, ud})
    for (const QpState from : states)
      for (const QpState to : states) {
        const auto row = expectations().find({type, from, to});
        const bool exists = row != expectations().end() || bare(from, to);
        if (!exists) {
          expect(type, from, to, attr_state, Kind::no_such_transition, 0);
          expect(type, from, to, ~0u, Kind::no_such_transition, 0);
          continue;
        }
        ++transitions;
        const Attributes a = row == expectations().end() ? Attributes{} : row->second;
        const std::uint32_t required = mask_of(a.required), optional = mask_of(a.optional);
        expect(type, from, to, attr_state | required, Kind::none, 0);
        expect(type, from, to, required, Kind::none, 0);
        expect(type, from, to, attr_state | required | optional, Kind::none, 0);
        for (const std::uint32_t missing : a.required)
          expect(type, from, to, (attr_state | required | optional) & ~missing,
                 Kind::missing_attribute, missing);
        for (unsigned bit = 0; bit < 32; ++bit) {
          const std::uint32_t extra = 1u << bit;
          const bool allowed = extra & (attr_state | required | optional | attr_kernel_only);
          expect(type, from, to, attr_state | required | extra,
                 allowed ? Kind::none : Kind::attribute_not_allowed, allowed ? 0 : extra);
        }
      }
  EXPECT_EQ(transitions, 26 + 3 * (7 + 6));
}

// What each program does first; a table that is wrong in both places would show here.
TEST(QpState, TheWayOfEveryProgramToRts) {
  expect(rc, reset, init, attr_state | attr_pkey_index | attr_port | attr_access_flags, Kind::none,
         0);
  expect(ud, rtr, rts, attr_state | attr_sq_psn, Kind::none, 0);
  expect(ud, init, rtr, attr_state, Kind::none, 0);
  expect(rc, reset, rtr, attr_state, Kind::no_such_transition, 0);
  expect(rc, init, rtr, attr_state, Kind::missing_attribute,
         attr_av | attr_path_mtu | attr_dest_qpn | attr_rq_psn | attr_max_dest_rd_atomic |
             attr_min_rnr_timer);
}

// librdmacm passes the bits of the kernel's own attributes through.
TEST(QpState, BitsOfTheKernelAreIgnored) {
  expect(rc, rts, error, attr_state | attr_kernel_only, Kind::none, 0);
  expect(rc, rts, error, attr_state | 1u << 21 | 1u << 26, Kind::attribute_not_allowed, 1u << 26);
}

TEST(QpState, AnRcQpHasNoSendQueueErrorToLeave) {
  expect(rc, sqe, rts, attr_state, Kind::no_such_transition, 0);
  expect(uc, sqe, rts, attr_state, Kind::none, 0);
}

std::string described(std::uint32_t mask, unsigned size = 512) {
  std::string out(512, '#');
  describe_mask(mask, out.data(), size);
  EXPECT_EQ(std::string(out, size, out.size()), std::string(512 - size, '#'));
  return size ? out.c_str() : "";
}

TEST(QpState, MasksAreDescribedInTheWordsOfTheApi) {
  EXPECT_EQ(described(0), "");
  EXPECT_EQ(described(attr_path_mtu), "IBV_QP_PATH_MTU");
  EXPECT_EQ(described(attr_state | attr_dest_qpn | attr_rate_limit),
            "IBV_QP_STATE, IBV_QP_DEST_QPN, IBV_QP_RATE_LIMIT");
  EXPECT_EQ(described(1u << 30), "unknown");
}

TEST(QpState, DescriptionIsCutToSize) {
  EXPECT_EQ(described(attr_path_mtu, 8), "IBV_QP_");
  EXPECT_EQ(described(attr_path_mtu, 1), "");
  described(attr_path_mtu, 0);
}

TEST(QpState, StatesHaveTheSpecificationsNames) {
  EXPECT_STREQ(name_of(rtr), "RTR");
  EXPECT_STREQ(name_of(error), "ERR");
  EXPECT_STREQ(name_of(static_cast<QpState>(7)), "unknown");
}

// The numbers and names are those of <infiniband/verbs.h>.
TEST(QpState, NumbersAndNamesAreThoseOfTheHeader) {
#define SAME(ours, theirs)                     \
  EXPECT_EQ(unsigned{ours}, unsigned{theirs}); \
  EXPECT_EQ(described(theirs), #theirs)
  SAME(attr_state, IBV_QP_STATE);
  SAME(attr_cur_state, IBV_QP_CUR_STATE);
  SAME(attr_en_sqd_async_notify, IBV_QP_EN_SQD_ASYNC_NOTIFY);
  SAME(attr_access_flags, IBV_QP_ACCESS_FLAGS);
  SAME(attr_pkey_index, IBV_QP_PKEY_INDEX);
  SAME(attr_port, IBV_QP_PORT);
  SAME(attr_qkey, IBV_QP_QKEY);
  SAME(attr_av, IBV_QP_AV);
  SAME(attr_path_mtu, IBV_QP_PATH_MTU);
  SAME(attr_timeout, IBV_QP_TIMEOUT);
  SAME(attr_retry_cnt, IBV_QP_RETRY_CNT);
  SAME(attr_rnr_retry, IBV_QP_RNR_RETRY);
  SAME(attr_rq_psn, IBV_QP_RQ_PSN);
  SAME(attr_max_qp_rd_atomic, IBV_QP_MAX_QP_RD_ATOMIC);
  SAME(attr_alt_path, IBV_QP_ALT_PATH);
  SAME(attr_min_rnr_timer, IBV_QP_MIN_RNR_TIMER);
  SAME(attr_sq_psn, IBV_QP_SQ_PSN);
  SAME(attr_max_dest_rd_atomic, IBV_QP_MAX_DEST_RD_ATOMIC);
  SAME(attr_path_mig_state, IBV_QP_PATH_MIG_STATE);
  SAME(attr_cap, IBV_QP_CAP);
  SAME(attr_dest_qpn, IBV_QP_DEST_QPN);
  SAME(attr_rate_limit, IBV_QP_RATE_LIMIT);
#undef SAME
  EXPECT_EQ(int(sqd), int(IBV_QPS_SQD));
  EXPECT_EQ(int(error), int(IBV_QPS_ERR));
  EXPECT_EQ(int(ud), int(IBV_QPT_UD));
}

}  // namespace
}  // namespace adverb::engine
