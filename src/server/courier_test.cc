#include "server/courier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

namespace dsv4 {
namespace {

using std::chrono::milliseconds;

TEST(Courier, runs_what_is_posted_in_order_on_one_thread) {
  std::vector<int> order;
  std::thread::id carrier[2];
  const auto first = std::make_shared<Courier::Round>([&] {
    order.push_back(1);
    carrier[0] = std::this_thread::get_id();
    return true;
  });
  const auto second = std::make_shared<Courier::Round>([&] {
    order.push_back(2);
    carrier[1] = std::this_thread::get_id();
    return order.size() < 3;
  });
  {
    Courier courier;
    courier.post({first, second});
    courier.post({second, first});
    courier.post({second});  // its round is over: not run again
  }                          // what was posted is done before the courier ends
  EXPECT_EQ(order, (std::vector<int>{1, 2, 2, 1}));
  EXPECT_EQ(carrier[0], carrier[1]);
  EXPECT_NE(carrier[0], std::this_thread::get_id());
}

TEST(Courier, the_owner_runs_a_round_that_nobody_posts) {
  int runs = 0;
  std::thread::id runner;
  Courier::Round round([&] {
    runner = std::this_thread::get_id();
    return ++runs < 3;
  });
  round.attend(milliseconds(1));
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(runner, std::this_thread::get_id());
  round.run();
  EXPECT_EQ(runs, 3);
}

TEST(Courier, the_owner_learns_what_went_wrong_on_the_couriers_thread) {
  Courier courier;
  std::atomic<int> runs{0};
  const auto round = std::make_shared<Courier::Round>([&]() -> bool {
    if (++runs == 2) throw std::runtime_error("broken");
    return true;
  });
  std::thread poster([&] {
    while (runs == 0) std::this_thread::yield();
    courier.post({round});
  });
  EXPECT_THROW(round->attend(std::chrono::hours(1)), std::runtime_error);
  EXPECT_EQ(runs, 2);
  poster.join();
}

// The body is never on two threads at once, whoever runs it.
TEST(Courier, owner_and_courier_take_turns) {
  Courier courier;
  std::atomic<int> inside{0}, runs{0};
  std::atomic<bool> together{false};
  const auto round = std::make_shared<Courier::Round>([&] {
    together = together || ++inside > 1;
    std::this_thread::yield();
    --inside;
    return ++runs < 2000;
  });
  std::thread poster([&] {
    while (runs < 2000) courier.post({round});
  });
  round->attend(milliseconds(0));
  poster.join();
  EXPECT_FALSE(together);
  EXPECT_EQ(runs, 2000);
}

}  // namespace
}  // namespace dsv4
