#include "hawser/base/log.h"

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "hawser/base/error.h"

namespace hawser::log {
namespace {

class LogTest : public testing::Test {
 protected:
  LogTest() {
    set_sink([this](Level, std::string_view layer, std::string_view line) {
      std::lock_guard lock(mutex_);
      lines_.push_back(std::string(layer) + ": " + std::string(line));
    });
  }
  ~LogTest() override {
    set_sink(nullptr);
    configure("warning");
  }
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST_F(LogTest, WritesWholeLinesToTheSink) {
  configure("info");
  Line(Level::Info, "wire") << "refused " << 3 << " frames";
  EXPECT_EQ(lines_, std::vector<std::string>{"wire: refused 3 frames"});
}

TEST_F(LogTest, LeavesOutWhatIsBelowTheLevel) {
  configure("warning");
  Line(Level::Info, "wire") << "quiet";
  Line(Level::Warning, "wire") << "loud";
  EXPECT_EQ(lines_, std::vector<std::string>{"wire: loud"});
  configure("off");
  EXPECT_FALSE(enabled(Level::Error, "wire"));
}

TEST_F(LogTest, EachLayerMayHaveItsLevel) {
  configure("error,transport=debug,agent=off");
  EXPECT_TRUE(enabled(Level::Debug, "transport"));
  EXPECT_FALSE(enabled(Level::Warning, "wire"));
  EXPECT_TRUE(enabled(Level::Error, "wire"));
  EXPECT_FALSE(enabled(Level::Error, "agent"));
}

TEST_F(LogTest, RefusesWordsItDoesNotKnowAndKeepsItsLevels) {
  configure("info");
  for (const char* specification : {"loud", "info,transport=loud", "=", "transport="}) {
    EXPECT_THROW(configure(specification), Error) << specification;
  }
  EXPECT_TRUE(enabled(Level::Info, "wire"));
  EXPECT_FALSE(enabled(Level::Debug, "wire"));
}

TEST_F(LogTest, ToleratesStrayCommas) {
  configure(",debug,,");
  EXPECT_TRUE(enabled(Level::Debug, "wire"));
}

TEST_F(LogTest, AnyThreadMayLog) {
  configure("info");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int j = 0; j < 50; ++j) Line(Level::Info, "agent") << "line " << j;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines_.size(), 200u);
}

}  // namespace
}  // namespace hawser::log
