#include "hawser/refs/wire_form.h"

#include <gtest/gtest.h>

namespace hawser::refs {
namespace {

TEST(WireForm, EveryRecordSurvivesTheTrip) {
  const RefId ref{3, 4};
  const ForkId fork{5, 6};
  const Party ann{"ann", Incarnation{1}}, bob{"bob", Incarnation{2}};
  const Message sent{7,
                     8,
                     {Claim{ref, fork}, Share{ref, fork, ann}, Share{ref, fork, bob},
                      Share{ref, fork, ann}, Drop{ref, fork}, Refuse{ref, fork}, Confirm{ref, fork},
                      Deny{ref, fork}, Inquire{ref, fork}}};
  wire::References travelling = to_wire(sent);
  EXPECT_EQ(travelling.children.size(), 2u);  // each is named once
  EXPECT_EQ(from_wire(std::move(travelling)), sent);
}

TEST(WireForm, AnAcknowledgementHasNoRecords) {
  const Message sent{9, 1, {}};
  EXPECT_EQ(from_wire(to_wire(sent)), sent);
}

}  // namespace
}  // namespace hawser::refs
