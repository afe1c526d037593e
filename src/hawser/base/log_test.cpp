#include "hawser/base/log.h"

#include <gtest/gtest.h>

#include <cstdlib>
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

// A process of its own, in which nobody has called configure(): what the environment says is read
// when the first line is logged, and lines go to standard error.
class LogEnvironment : public testing::Test {
 protected:
  LogEnvironment() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ~LogEnvironment() override { ::unsetenv("HAWSER_LOG"); }
  static void log_and_exit() {
    Line(Level::Debug, "wire") << "finest";
    Line(Level::Info, "wire") << "fine";
    Line(Level::Debug, "transport") << "deeper";
    Line(Level::Warning, "wire") << "loud";
    std::exit(0);
  }
};

TEST_F(LogEnvironment, SetsTheLevels) {
  ::setenv("HAWSER_LOG", "info,transport=debug", 1);
  EXPECT_EXIT(log_and_exit(), testing::ExitedWithCode(0),
              "^[^\n]* info wire: fine\n[^\n]* debug transport: deeper\n"
              "[^\n]* warning wire: loud\n$");
}

TEST_F(LogEnvironment, LeavesWarningsWhereItSaysNothing) {
  ::unsetenv("HAWSER_LOG");
  EXPECT_EXIT(log_and_exit(), testing::ExitedWithCode(0), "^[^\n]* warning wire: loud\n$");
}

TEST_F(LogEnvironment, IsComplainedAboutWhereItMakesNoSense) {
  ::setenv("HAWSER_LOG", "deafening", 1);
  EXPECT_EXIT(log_and_exit(), testing::ExitedWithCode(0), "deafening");
}

}  // namespace
}  // namespace hawser::log
