#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace dsv4 {
namespace {

Status errno_status(const std::string& path, const char* action) {
  const int error = errno;
  const std::string message = path + ": cannot " + action + ": " + std::strerror(error);
  return error == ENOENT || error == ENOTDIR ? not_found(message) : io_error(message);
}

// Opens a regular file for reading and tells its size.
Result<int> open_regular(const std::string& path, uint64_t* size_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno_status(path, "open");
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    Status status = errno_status(path, "stat");
    ::close(fd);
    return status;
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return invalid_argument(path + ": not a regular file");
  }
  *size_bytes = static_cast<uint64_t>(info.st_size);
  return fd;
}

}  // namespace

Result<std::string> read_file(const std::string& path, uint64_t max_bytes) {
  uint64_t size_bytes = 0;
  DSV4_ASSIGN_OR_RETURN(const int fd, open_regular(path, &size_bytes));
  if (size_bytes > max_bytes) {
    ::close(fd);
    return resource_limit(path + ": " + std::to_string(size_bytes) + " bytes, at most " + std::to_string(max_bytes) + " are read");
  }
  std::string out(size_bytes, '\0');
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::read(fd, out.data() + done, out.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      Status status = errno_status(path, "read");
      ::close(fd);
      return status;
    }
    if (n == 0) break;  // the file shrank while it was read
    done += static_cast<size_t>(n);
  }
  ::close(fd);
  out.resize(done);
  return out;
}

Status write_file_atomic(const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".tmp." + std::to_string(::getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) return errno_status(temporary, "create");
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed || std::rename(temporary.c_str(), path.c_str()) != 0) {
    Status status = errno_status(path, "write");
    std::remove(temporary.c_str());
    return status;
  }
  return ok_status();
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  uint64_t size_bytes = 0;
  DSV4_ASSIGN_OR_RETURN(const int fd, open_regular(path, &size_bytes));
  MappedFile file;
  if (size_bytes > 0) {
    void* p = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
      Status status = errno_status(path, "map");
      ::close(fd);
      return status;
    }
    file.data_ = static_cast<const std::byte*>(p);
    file.size_bytes_ = size_bytes;
  }
  ::close(fd);
  return file;
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_bytes_);
}

}  // namespace dsv4
