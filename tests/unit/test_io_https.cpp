// The headers that downloads depend on, line by line.
#include <gtest/gtest.h>

#include "sys/https/https.h"

namespace hearth {
namespace {

HttpsHead head_of(std::initializer_list<std::string_view> lines) {
  HttpsHead head;
  for (const std::string_view line : lines) read_header(head, line);
  return head;
}

TEST(HttpsHead, StatusLengthRangeAndTag) {
  const HttpsHead whole = head_of({"HTTP/1.1 200 OK\r\n", "Content-Length: 12\r\n",
                                   "ETag:  \"v1\" \r\n", "X-Other: 7\r\n", "\r\n"});
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.from, 0);
  EXPECT_EQ(whole.total, 12);
  EXPECT_EQ(whole.etag, "\"v1\"");
  const HttpsHead part = head_of({"HTTP/2 206\r\n", "content-length: 4\r\n",
                                  "content-range: bytes 8-11/12\r\n", "etag: W/\"v1\"\r\n"});
  EXPECT_EQ(part.status, 206);
  EXPECT_EQ(part.from, 8);
  EXPECT_EQ(part.total, 12);
  EXPECT_EQ(part.etag, "W/\"v1\"");
}

TEST(HttpsHead, ARedirectIsForgotten) {
  const HttpsHead head = head_of({"HTTP/1.1 302 Found\r\n", "ETag: \"page\"\r\n", "\r\n",
                                  "HTTP/1.1 200 OK\r\n", "Content-Length: 5\r\n"});
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.etag, "");
  EXPECT_EQ(head.total, 5);
}

TEST(HttpsHead, WhatIsNoNumberIsUnknown) {
  const HttpsHead head =
      head_of({"HTTP/1.1 206 x\r\n", "Content-Range: bytes x-5/*\r\n", "Content-Length: -3\r\n"});
  EXPECT_EQ(head.from, -1);
  EXPECT_EQ(head.total, -1);
  EXPECT_EQ(head_of({"HTTP/1.1 200 OK", "Content-Length: 99999999999999999999"}).total, -1);
  EXPECT_EQ(head_of({"HTTP/1.1", "no colon", ":", ""}).status, 0);
}

TEST(HttpsHead, TagsThatMayBeSentBack) {
  for (const char* good : {"\"\"", "\"a\"", "W/\"a-1\""}) EXPECT_TRUE(is_etag(good)) << good;
  for (const char* bad : {"", "\"", "a", "\"a", "\"a b\"", "\"a\r\n\"", "w/\"a\"", "\"\xe9\""})
    EXPECT_FALSE(is_etag(bad)) << bad;
  EXPECT_FALSE(is_etag('"' + std::string(200, 'a') + '"'));
}

}  // namespace
}  // namespace hearth
