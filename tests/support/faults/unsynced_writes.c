/* Preloaded into PostgreSQL: keeps what each write to a file below UNSYNCED_DATA replaced until the file is synced, in
   a log of its own, UNSYNCED_LOGS/INODE. So a loss of power can undo what was not synced. Names of files count as
   synced at once. Written with system calls: the functions of the C library lead back to here. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct replaced {
  int64_t offset, count; /* what was written */
  int64_t kept;          /* how many of the bytes that were there before follow */
  int64_t size;          /* of the file before */
};

static void append(int log, const void *bytes, size_t count) {
  for (ssize_t done; count; bytes = (const char *)bytes + done, count -= done)
    if ((done = syscall(SYS_write, log, bytes, count)) <= 0) abort();
}

static void name_log(char *path, const struct stat *file) {
  snprintf(path, PATH_MAX, "%s/%ju", getenv("UNSYNCED_LOGS"), (uintmax_t)file->st_ino);
}

/* Return the log of an open file, locked until it is closed; -1 for what is no file of the database. */
static int lock_log(int fd, struct stat *file) {
  const char *data = getenv("UNSYNCED_DATA");
  char link[64], path[PATH_MAX] = "";
  if (!data || fstat(fd, file) || !S_ISREG(file->st_mode) || !file->st_nlink) return -1;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (readlink(link, path, sizeof path - 1) < 0 || strncmp(path, data, strlen(data))) return -1;
  name_log(path, file);
  int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) abort();
  while (flock(log, LOCK_EX))
    if (errno != EINTR) abort();
  if (fstat(fd, file)) abort(); /* again: its size may have changed before the lock */
  return log;
}

/* Through a file of its own: the process may have opened its own for writing only. */
static void read_all(int fd, char *bytes, ssize_t count, off_t offset) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  int file = open(link, O_RDONLY | O_CLOEXEC);
  if (file < 0 || syscall(SYS_pread64, file, bytes, count, offset) != count) abort();
  close(file);
}

static int before_write(int fd, off_t offset, off_t count) {
  struct stat file;
  int log = lock_log(fd, &file);
  if (log < 0) return log;
  if (offset < 0) offset = fcntl(fd, F_GETFL) & O_APPEND ? file.st_size : lseek(fd, 0, SEEK_CUR);
  if (count < 0) count = file.st_size > offset ? file.st_size - offset : 0;
  off_t end = offset + count < file.st_size ? offset + count : file.st_size;
  struct replaced replaced = {offset, count, end > offset ? end - offset : 0, file.st_size};
  char *bytes = malloc(replaced.kept + 1);
  if (!bytes) abort();
  if (replaced.kept) read_all(fd, bytes, replaced.kept, offset);
  append(log, &replaced, sizeof replaced);
  append(log, bytes, replaced.kept);
  free(bytes);
  return log;
}

static long after(int log, long result) {
  int error = errno;
  if (log >= 0) close(log);
  errno = error;
  return result;
}

ssize_t write(int fd, const void *bytes, size_t count) {
  int log = before_write(fd, -1, count);
  return after(log, syscall(SYS_write, fd, bytes, count));
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) {
  int log = before_write(fd, offset, count);
  return after(log, syscall(SYS_pwrite64, fd, bytes, count, offset));
}

ssize_t pwritev(int fd, const struct iovec *parts, int number, off_t offset) {
  off_t count = 0;
  for (int part = 0; part < number; part++) count += parts[part].iov_len;
  int log = before_write(fd, offset, count);
  return after(log, syscall(SYS_pwritev, fd, parts, number, offset, 0));
}

int ftruncate(int fd, off_t size) {
  int log = before_write(fd, size, -1);
  return after(log, syscall(SYS_ftruncate, fd, size));
}

int truncate(const char *path, off_t size) {
  int fd = open(path, O_RDWR | O_CLOEXEC);
  return fd < 0 ? fd : after(fd, ftruncate(fd, size));
}

int posix_fallocate(int fd, off_t offset, off_t count) {
  int log = before_write(fd, offset, count);
  return after(log, syscall(SYS_fallocate, fd, 0, offset, count)) ? errno : 0;
}

static int synced(int fd, long call) {
  struct stat file;
  int log = lock_log(fd, &file), failed = syscall(call, fd);
  if (log >= 0 && !failed) syscall(SYS_ftruncate, log, 0);
  return after(log, failed);
}

int fsync(int fd) { return synced(fd, SYS_fsync); }

int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

/* Drop the log of a file that is about to lose its name: another file may get its inode. */
static void forget(const char *path) {
  struct stat file;
  char log_path[PATH_MAX];
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), log = fd < 0 ? fd : lock_log(fd, &file);
  if (log >= 0) {
    name_log(log_path, &file);
    syscall(SYS_unlink, log_path);
    close(log);
  }
  if (fd >= 0) close(fd);
}

int unlink(const char *path) {
  forget(path);
  return syscall(SYS_unlink, path);
}

int rename(const char *from, const char *to) {
  forget(to);
  return syscall(SYS_rename, from, to);
}
