#include "record_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "crc32c.h"

void open_files_create(open_files *files) {
  pthread_mutex_init(&files->lock, NULL);
  memset(files->slots, 0, sizeof files->slots);
  for (int i = 0; i < OPEN_FILES; i++) files->slots[i].descriptor = -1;
}

void open_files_destroy(open_files *files) {
  for (int i = 0; i < OPEN_FILES; i++)
    if (files->slots[i].descriptor >= 0) close(files->slots[i].descriptor);
  pthread_mutex_destroy(&files->lock);
}

bool open_files_take(open_files *files, const char *path, int64_t number, opened *file) {
  struct stat status;
  /* Before the file is opened, as to open a pipe may wait for ever. */
  if (stat(path, &status) || !S_ISREG(status.st_mode)) return false;
  int slot = (int)((uint64_t)number % OPEN_FILES);
  *file = (opened){-1, slot, status.st_size};
  pthread_mutex_lock(&files->lock);
  if (files->slots[slot].descriptor >= 0 && files->slots[slot].device == status.st_dev &&
      files->slots[slot].inode == status.st_ino) {
    files->slots[slot].readers++;
    file->descriptor = files->slots[slot].descriptor;
  }
  pthread_mutex_unlock(&files->lock);
  if (file->descriptor >= 0) return true;

  file->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->descriptor < 0) return false;
  if (fstat(file->descriptor, &status) || !S_ISREG(status.st_mode)) {
    close(file->descriptor);
    return false;
  }
  file->size = status.st_size;
  int unused = -1;
  pthread_mutex_lock(&files->lock);
  if (files->slots[slot].readers == 0) {
    unused = files->slots[slot].descriptor;
    files->slots[slot].descriptor = file->descriptor;
    files->slots[slot].device = status.st_dev;
    files->slots[slot].inode = status.st_ino;
    files->slots[slot].readers = 1;
  } else {
    file->slot = -1;
  }
  pthread_mutex_unlock(&files->lock);
  if (unused >= 0) close(unused);
  return true;
}

void open_files_give_back(open_files *files, opened file) {
  if (file.slot < 0) {
    close(file.descriptor);
    return;
  }
  pthread_mutex_lock(&files->lock);
  files->slots[file.slot].readers--;
  pthread_mutex_unlock(&files->lock);
}

/* Fills the three buffers; a read may stop early, at a signal or at 2 GiB. */
static bool read_all(int descriptor, struct iovec part[3], int64_t offset) {
  int at = 0;
  for (;;) {
    while (at < 3 && part[at].iov_len == 0) at++;
    if (at == 3) return true;
    ssize_t got = preadv(descriptor, part + at, 3 - at, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    offset += got;
    for (int i = at; i < 3 && got; i++) {
      size_t taken = (size_t)got < part[i].iov_len ? (size_t)got : part[i].iov_len;
      part[i].iov_base = (char *)part[i].iov_base + taken;
      part[i].iov_len -= taken;
      got -= (ssize_t)taken;
    }
  }
}

bool record_read(int descriptor, int64_t offset, size_t length, char *payload) {
  struct {
    uint64_t length;
    uint32_t crc;
  } head;
  uint32_t crc;
  struct iovec parts[3] = {{&head, 12}, {payload, length}, {&crc, 4}};
  return read_all(descriptor, parts, offset) && head.length == length &&
         head.crc == crc32c_masked(&head.length, 8) && crc == crc32c_masked(payload, length);
}
