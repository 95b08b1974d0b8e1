#include "data/download.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "sys/error.h"
#include "sys/hash/hash.h"
#include "sys/progress.h"
#include "sys/terminal.h"

namespace hearth::inline data {
namespace {

namespace fs = std::filesystem;
using Checked = Downloaded::Checked;

constexpr const char* remove_hint = "delete it to download it again";

fs::path with_suffix(const fs::path& path, const char* suffix) {
  fs::path p = path;
  p += suffix;
  return p;
}

// The expected checksum of a file, from the catalogue or from an earlier download.
struct Expected {
  std::string sha256;  // empty: unknown
  Checked by = Checked::first_use;
};

Expected expected_of(const CatalogueFile& file, const fs::path& path) {
  if (!file.sha256.empty()) return {file.sha256, Checked::catalogue};
  const fs::path beside = with_suffix(path, ".sha256");
  if (!fs::exists(beside)) return {};
  const std::string text = read_file(beside, 4096);
  if (text.size() < 64 || text.find_first_not_of("0123456789abcdef") < 64)
    fail(beside.string(),
         "expected the sha256 of an earlier download, got other contents; delete the file");
  return {text.substr(0, 64), Checked::earlier};
}

const char* whose(Checked by) {
  return by == Checked::catalogue ? "the catalogue's" : "the earlier download's";
}

class Download {
 public:
  Download(Https& https, const CatalogueFile& file, const DownloadSpec& spec)
      : https_(https),
        file_(file),
        spec_(spec),
        path_(spec.folder / file.name),
        part_(with_suffix(path_, ".part")),
        tag_(with_suffix(path_, ".part.etag")),
        expected_(expected_of(file, path_)) {
    if (!file.url.starts_with("https://"))
      fail(file.name, "expected an https:// address, got {}", file.url);
  }

  Downloaded run() {
    make_dirs(spec_.folder);
    if (fs::exists(path_)) return check_present();
    open_part();
    // An earlier run may have ended between the last byte and the rename.
    if (size_ == file_.bytes && !is_as_expected()) restart();
    if (size_ != file_.bytes) fetch();
    return finish();
  }

 private:
  void fetch() {
    for (int failures = 0;;) {
      const int64_t before = size_;
      const HttpsResult r = https_.get(
          {file_.url, size_, etag_}, [&](const HttpsHead& head) { begin(head); },
          [&](Bytes bytes) { append(bytes); });
      if (r.problem.empty() && (total_ < 0 || size_ == total_)) break;
      if (r.head.status == 416 && size_ > 0) {
        if (size_ == (file_.bytes >= 0 ? file_.bytes : r.head.total) && is_as_expected()) break;
        restart();  // the part belongs to another version
        if (++failures <= spec_.retries) continue;
      }
      failures = size_ > before ? 1 : failures + 1;
      const std::string problem =
          r.problem.empty() ? fmt::format("the connection ended at byte {}", size_) : r.problem;
      if (r.lasting || failures > spec_.retries) give_up(problem, r.lasting);
      wait(failures, problem);
    }
  }

  bool is_as_expected() const {
    return expected_.sha256.empty() || Sha256(sha_).hex() == expected_.sha256;
  }

  Downloaded check_present() const {
    const FileDigest d = digest_file(spec_.folder, file_.name);
    if (file_.bytes >= 0 && int64_t(d.size) != file_.bytes)
      fail(path_.string(), "expected {} bytes, got {}: {}", file_.bytes, d.size, remove_hint);
    if (!expected_.sha256.empty() && d.sha256 != expected_.sha256)
      fail(path_.string(), "expected {} sha256 {}, got {}: {}", whose(expected_.by),
           expected_.sha256, d.sha256, remove_hint);
    if (expected_.sha256.empty()) remember(d.sha256);
    return {.bytes = int64_t(d.size),
            .resumed_from = 0,
            .sha256 = d.sha256,
            .was_there = true,
            .checked = expected_.by};
  }

  // Continues an earlier partial download if its ETag is known; without one it may be of another
  // version. A link or anything other than a regular file was not left by an earlier run.
  void open_part() {
    if (fs::is_regular_file(fs::symlink_status(tag_))) etag_ = read_file(tag_, 4096);
    const auto kind = fs::symlink_status(part_).type();
    if (kind != fs::file_type::not_found && kind != fs::file_type::regular)
      fail(part_.string(), "expected a partial download, got {}: delete it",
           kind == fs::file_type::symlink ? "a symbolic link" : "another kind of file");
    if (!is_etag(etag_) || kind == fs::file_type::not_found) {
      fd_ = create_file(part_, O_RDWR, "write the file");
      return restart();
    }
    fd_ = open_file(part_, O_RDWR | O_NOFOLLOW, "write the file");
    std::vector<std::byte> piece(1 << 20);
    for (ssize_t n; (n = ::read(fd_.get(), piece.data(), piece.size())) != 0; size_ += n) {
      if (n < 0) fail_errno(part_, "read the file");
      sha_.update(Bytes(piece).first(size_t(n)));
    }
    resumed_from_ = size_;
  }

  void restart() {
    if (::ftruncate(fd_.get(), 0) != 0 || ::lseek(fd_.get(), 0, SEEK_SET) != 0)
      fail_errno(part_, "truncate the file");
    std::error_code none;
    fs::remove(tag_, none);
    etag_.clear();
    sha_ = Sha256();
    size_ = resumed_from_ = 0;
  }

  // Handles the headers before the body arrives.
  void begin(const HttpsHead& head) {
    if (head.status == 200 && size_ > 0)
      restart();  // the server has no ranges, or the file changed
    if (head.status == 206 && head.from != size_)
      fail(file_.url, "expected the file from byte {}, got it from byte {}", size_, head.from);
    if (file_.bytes >= 0 && head.total >= 0 && head.total != file_.bytes)
      fail(file_.url, "expected a file of {} bytes, got one of {}", file_.bytes, head.total);
    total_ = head.total >= 0 ? head.total : file_.bytes;
    check_room();
    if (size_ == 0 && !head.etag.empty() && !head.etag.starts_with("W/")) {
      etag_ = head.etag;
      write_file_atomic(tag_, etag_);
    }
    if (!progress_)
      progress_.emplace(file_.name, ProgressLine::Start{std::max<int64_t>(0, total_), size_, size_},
                        spec_.progress);
  }

  void check_room() const {
    struct statvfs disk {};
    if (total_ < 0 || ::statvfs(spec_.folder.c_str(), &disk) != 0) return;
    const int64_t room = int64_t(disk.f_bavail) * int64_t(disk.f_frsize);
    if (total_ - size_ > room)
      fail(spec_.folder.string(), "expected {} more bytes of disk space for {}, got {}",
           total_ - size_, file_.name, room);
  }

  void append(Bytes bytes) {
    if (total_ < 0 && size_ + int64_t(bytes.size()) > spec_.max_bytes) {
      remove_part();
      fail(file_.url,
           "expected at most {} bytes of a file whose length the server does not state, got more: "
           "raise --max-bytes",
           spec_.max_bytes);
    }
    if (total_ >= 0 && size_ + int64_t(bytes.size()) > total_)
      fail(file_.url, "expected a file of {} bytes, got more", total_);
    write_all(fd_, bytes, part_);
    sha_.update(bytes);
    size_ += int64_t(bytes.size());
    progress_->show(size_, size_, "");
  }

  void remove_part() const {
    std::error_code none;
    fs::remove(part_, none), fs::remove(tag_, none);
  }

  [[noreturn]] void give_up(const std::string& problem, bool lasting) {
    if (size_ == 0) {
      remove_part();
    } else {
      ::fsync(fd_.get());
    }
    fail(file_.url, "the download failed: {}{}{}", problem,
         lasting ? "" : fmt::format(" ({} times in a row)", spec_.retries + 1),
         size_ > 0 ? fmt::format("; {} bytes are kept, run the command again to continue", size_)
                   : "");
  }

  void wait(int failures, const std::string& problem) const {
    const double seconds = std::min(60.0, spec_.backoff * double(1 << std::min(failures - 1, 16)));
    if (spec_.progress) say("{}: {}; retrying in {:.1f} s\n", file_.name, problem, seconds);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }

  Downloaded finish() {
    if (progress_) progress_->finish(size_, size_, "");
    const std::string digest = sha_.hex();
    if (!expected_.sha256.empty() && digest != expected_.sha256) {
      fd_ = Fd();
      fs::remove(part_), fs::remove(tag_);
      fail(file_.url, "expected {} sha256 {}, got {}: the download was discarded",
           whose(expected_.by), expected_.sha256, digest);
    }
    if (::fsync(fd_.get()) != 0) fail_errno(part_, "sync the file to disk");
    fd_ = Fd();
    if (expected_.sha256.empty()) remember(digest);
    if (::rename(part_.c_str(), path_.c_str()) != 0)
      fail_errno(path_, "move the finished file into place");
    fsync_dir(spec_.folder);
    std::error_code none;
    fs::remove(tag_, none);
    return {.bytes = size_,
            .resumed_from = resumed_from_,
            .sha256 = digest,
            .was_there = false,
            .checked = expected_.by};
  }

  void remember(const std::string& digest) const {  // in the format of sha256sum -c
    write_file_atomic(with_suffix(path_, ".sha256"), digest + "  " + file_.name + "\n");
  }

  Https& https_;
  const CatalogueFile& file_;
  const DownloadSpec& spec_;
  fs::path path_, part_, tag_;
  Expected expected_;
  Fd fd_;
  Sha256 sha_;  // over the first size_ bytes
  int64_t size_ = 0, total_ = -1, resumed_from_ = 0;
  std::string etag_;
  std::optional<ProgressLine> progress_;
};

}  // namespace

const char* name(Downloaded::Checked c) {
  return c == Checked::catalogue ? "catalogue" : c == Checked::earlier ? "earlier" : "first_use";
}

Downloaded download(Https& https, const CatalogueFile& file, const DownloadSpec& spec) {
  return Download(https, file, spec).run();
}

}  // namespace hearth::inline data
