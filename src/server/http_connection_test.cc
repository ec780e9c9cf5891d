#include "server/http_connection.h"

#include <gtest/gtest.h>

#include <thread>

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

namespace dsv4 {
namespace {

TEST(HttpConnection, keeps_what_a_peer_does_not_take_while_nobody_waits) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  HttpConnection connection(ends[0], {.head_bytes = 1000, .receive_seconds = 5, .idle_seconds = 5});
  EXPECT_TRUE(connection.ready());
  connection.set_waiting(false);
  std::string sent;
  for (int i = 0; i < 100; ++i) {  // 5 MB: a write that waited would find the peer silent for 5 s, and break
    const std::string piece(50000, static_cast<char>('a' + i % 26));
    ASSERT_EQ(connection.write(piece.data(), piece.size()), static_cast<ssize_t>(piece.size()));
    sent += piece;
  }
  EXPECT_FALSE(connection.ready());
  EXPECT_FALSE(connection.peer_gone());

  std::string received;
  const timeval patience{.tv_sec = 5, .tv_usec = 0};
  setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  std::thread peer([&] {
    char bytes[65536];
    for (ssize_t n; received.size() < sent.size() + 3 && (n = recv(ends[1], bytes, sizeof(bytes), 0)) > 0;) received.append(bytes, static_cast<size_t>(n));
  });
  connection.set_waiting(true);
  connection.write_all("end");
  peer.join();
  EXPECT_TRUE(received == sent + "end");
  EXPECT_TRUE(connection.ready());

  ::close(ends[1]);
  EXPECT_FALSE(connection.ready());
  EXPECT_TRUE(connection.peer_gone());
  connection.set_waiting(false);
  EXPECT_EQ(connection.write("x", 1), -1);
}

}  // namespace
}  // namespace dsv4
