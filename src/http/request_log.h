// RequestLog: one line per request, on stderr (--log-requests) or as JSON in a file
// (--request-log). It never contains a prompt, an answer, a query string or a key.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "http/http.h"
#include "http/workers.h"

namespace hearth::inline http {

struct RequestRecord {
  std::string client = {};  // address:port
  std::string method = {}, path = {};
  int status = 0;
  int64_t bytes = 0;  // bytes sent
  double milliseconds = 0;
  AnswerNote answer = {};
};

// TIME CLIENT METHOD PATH STATUS BYTES MS PROMPT COMPLETION, with "-" for unknown values. Request
// bytes that are not printable ASCII are escaped.
std::string log_line(std::chrono::system_clock::time_point, const RequestRecord&);

// The same and more as one JSON object.
std::string json_log_line(std::chrono::system_clock::time_point, const RequestRecord&);

// A file that lines are appended to, each with one write, so that lines of several processes do not
// mix. If the file was moved or removed, as log rotation does, a new one is opened.
class LineFile {
 public:
  explicit LineFile(std::string path);  // throws if it cannot be opened
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  bool append(std::string_view line);  // false: it was not written

 private:
  bool open();
  bool moved() const;
  bool write(std::string_view);

  const std::string path_;
  int file_ = -1;
  bool torn_ = false;  // the file ends in a part of a line
};

class RequestLog {
 public:
  // `path`: the file for lines of JSON; empty: none.
  explicit RequestLog(bool lines, const std::string& path = {});
  ~RequestLog();  // waits for the lines, but not for long
  bool enabled() const { return out_->lines || out_->file; }
  // Called on the network thread, which a blocked reader of stderr must not stall: a separate
  // thread writes the lines, and lines beyond the limit are dropped and counted.
  void add(const RequestRecord&);

 private:
  // Where the lines go. The writer holds it too, because it may outlive the log.
  struct Output {
    Output(bool lines, std::unique_ptr<LineFile> file) : lines(lines), file(std::move(file)) {}
    void put(const std::string& line, const std::string& json);

    const bool lines;
    const std::unique_ptr<LineFile> file;
    std::atomic<int64_t> waiting = 0, dropped = 0;
    bool told = false;  // that the last line could not be written
  };
  const std::shared_ptr<Output> out_;
  std::unique_ptr<Workers> writer_;
};

}  // namespace hearth::inline http
