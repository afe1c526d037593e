// The seeds of the fuzz targets in tests/fuzz are what the current codec writes: one of each kind
// of message. After a change of the protocol, write them anew and look at what else is in the
// folders:
//   HAWSER_WRITE_CORPUS=1 wire_tests --gtest_filter='Corpus.*'
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "hawser/wire/message.h"
#include "support/random_messages.h"

namespace hawser::wire {
namespace {

namespace fs = std::filesystem;
using testing::RandomMessages;
using Bytes = std::vector<std::byte>;
using Seeds = std::map<std::string, Bytes>;

Bytes read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> text((std::istreambuf_iterator<char>(file)),
                               std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void write_file(const fs::path& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good()) << path;
}

void expect_current(const std::string& target, const Seeds& seeds) {
  const fs::path folder = fs::path(HAWSER_TEST_SOURCE_DIR) / "tests" / "fuzz" / target;
  const bool write = std::getenv("HAWSER_WRITE_CORPUS") != nullptr;
  if (write) fs::create_directories(folder);
  for (const auto& [name, bytes] : seeds) {
    if (write) write_file(folder / name, bytes);
    EXPECT_EQ(read_file(folder / name), bytes) << (folder / name) << " is not current";
  }
}

// Calls `use` with a name and a frame of each kind, sparsely filled and fuller.
template <class Use>
void for_each_frame(Use use) {
  for (const unsigned seed : {2u, 5u}) {
    RandomMessages random(seed);
    const auto add = [&](const OutFrame& frame) {
      use(std::string(to_string(frame.kind)) + "_" + std::to_string(seed), frame);
    };
    add(encode(random.call()));
    add(encode(random.reply()));
    add(encode(random.failure()));
    add(encode(random.cancel()));
    add(encode(random.heartbeat()));
    add(encode(random.heartbeat_echo()));
    add(encode(random.goodbye()));
    add(encode(random.arrival()));
    add(encode(random.census()));
    add(encode(random.census_report()));
    add(encode(random.dismissal()));
    add(encode(random.references()));
    add(encode(Handshake(random.hello())));
    add(encode(Handshake(random.challenge())));
    add(encode(Handshake(random.proof())));
    add(encode(Handshake(random.welcome())));
    add(encode(Handshake(random.refusal())));
  }
}

TEST(Corpus, OfFramesIsCurrent) {
  Seeds seeds;
  for_each_frame(
      [&](const std::string& name, const OutFrame& frame) { seeds[name] = to_bytes(frame); });
  expect_current("frame_fuzz", seeds);
}

TEST(Corpus, OfBodiesIsCurrent) {
  Seeds seeds;
  for_each_frame([&](const std::string& name, const OutFrame& frame) {
    Bytes& bytes = seeds[name];
    bytes = {static_cast<std::byte>(frame.kind), static_cast<std::byte>(frame.segments.size())};
    bytes.insert(bytes.end(), frame.body.begin(), frame.body.end());
  });
  expect_current("codec_fuzz", seeds);
}

TEST(Corpus, OfValuesIsCurrent) {
  const auto written = [](auto write) {
    ValueBytes bytes;
    ValueWriter writer(bytes);
    write(writer);
    return Bytes(bytes.begin(), bytes.end());
  };
  Seeds seeds;
  seeds["scalars"] = written([](ValueWriter& writer) {
    writer.tuple(6);
    writer.null();
    writer.boolean(true);
    writer.integer(-1'000'000'007);
    writer.real(0.125);
    writer.complex({1, -1});
    writer.string("text");
  });
  seeds["indices"] = written([](ValueWriter& writer) {
    writer.list(4);
    writer.tensor(0);
    writer.blob(300);
    writer.text(301);
    writer.reference(2);
    writer.bytes(std::as_bytes(std::span("raw", 3)));
  });
  seeds["nested"] = written([](ValueWriter& writer) {
    writer.dict(2);
    writer.string("points");
    writer.list(1);
    writer.record("Point", 2);
    writer.real(1);
    writer.integer(2);
    writer.tuple(0);
    writer.list(0);
  });
  expect_current("value_fuzz", seeds);
}

}  // namespace
}  // namespace hawser::wire
