/* A TensorFlow filesystem plugin: slow:///path is /path behind a link of a given rate and latency.

   Reading only. The link is first come, first served: a piece of n bytes arrives n / rate seconds
   after the piece before it, or after it was asked for, whichever is later. Time in which nobody
   reads is lost, as on a real link: there is no burst. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The header is written for C++; C has had constexpr only since C23. */
#define constexpr static const
#include "tensorflow/c/experimental/filesystem/filesystem_interface.h"
#undef constexpr

#define SCHEME "slow"
#define PREFIX SCHEME "://"

/* Bytes that travel in one piece: small enough for threads to share the link evenly. */
#define PIECE (64 * 1024)

/* The link. It may lie in a file that several processes map, so it holds no lock that a killed
   process could keep, only atomic numbers; all times are of CLOCK_MONOTONIC, which a host's
   processes have in common. */
typedef struct {
  _Atomic int64_t bytes_per_second; /* 0: no limit */
  _Atomic int64_t latency;          /* nanoseconds a request */
  _Atomic int64_t free_at;          /* when the last piece asked for will have arrived */
  _Atomic int64_t bytes_read;
  _Atomic int64_t requests;
} Link;

static Link private_link;
static Link* _Atomic the_link = &private_link;

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void sleep_until(int64_t when) {
  struct timespec t = {when / 1000000000LL, when % 1000000000LL};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
  }
}

/* Waits as long as a request is on its way. Requests do not wait for each other. */
static void request(void) {
  Link* link = the_link;
  atomic_fetch_add(&link->requests, 1);
  int64_t latency = atomic_load(&link->latency);
  if (latency > 0) sleep_until(now() + latency);
}

/* Waits until n more bytes, of a read that was asked for at that time, have come through the link.
   Not from now on: bytes travel on while their reader oversleeps. */
static void arrive(int64_t n, int64_t asked) {
  Link* link = the_link;
  atomic_fetch_add(&link->bytes_read, n);
  int64_t rate = atomic_load(&link->bytes_per_second);
  if (rate <= 0) return;
  int64_t takes = (int64_t)(1e9 * (double)n / (double)rate);
  int64_t before = atomic_load(&link->free_at), until;
  do {
    until = (before > asked ? before : asked) + takes;
  } while (!atomic_compare_exchange_weak(&link->free_at, &before, until));
  sleep_until(until);
}

/* What Python calls. */

int slow_source_share(const char* path) {
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  void* shared = MAP_FAILED;
  if (ftruncate(fd, sizeof(Link)) == 0)
    shared = mmap(NULL, sizeof(Link), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  int error = errno;
  close(fd);
  if (shared == MAP_FAILED) return error;
  the_link = shared; /* an earlier one stays mapped: a thread may be waiting on it */
  return 0;
}

void slow_source_unshare(void) { the_link = &private_link; }

void slow_source_set(int64_t bytes_per_second, int64_t latency) {
  Link* link = the_link;
  atomic_store(&link->bytes_per_second, bytes_per_second);
  atomic_store(&link->latency, latency);
  atomic_store(&link->free_at, 0);
}

int64_t slow_source_bytes_read(void) { return atomic_load(&the_link->bytes_read); }
int64_t slow_source_requests(void) { return atomic_load(&the_link->requests); }

/* Paths arrive here already translated; errors give them back as they were written. */

static void fail(TF_Status* status, int error, const char* path) {
  char* context = NULL;
  size_t size = strlen(path) + sizeof(PREFIX);
  if ((context = malloc(size))) {
    memcpy(context, PREFIX, sizeof(PREFIX));
    strcat(context, path);
  }
  TF_SetStatusFromIOError(status, error, context ? context : path);
  free(context);
}

static void succeed(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

static char* translate_name(const TF_Filesystem* filesystem, const char* uri) {
  bool has_prefix = strncmp(uri, PREFIX, strlen(PREFIX)) == 0;
  return strdup(has_prefix ? uri + strlen(PREFIX) : uri);
}

/* A file that is open for reading. */

typedef struct {
  int fd;
  char path[];
} File;

static void new_random_access_file(const TF_Filesystem* filesystem, const char* path,
                                   TF_RandomAccessFile* out, TF_Status* status) {
  struct stat found;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &found) < 0) {
    int error = errno;
    if (fd >= 0) close(fd);
    return fail(status, error, path);
  }
  File* file = S_ISDIR(found.st_mode) ? NULL : malloc(sizeof(File) + strlen(path) + 1);
  if (!file) {
    close(fd);
    return fail(status, S_ISDIR(found.st_mode) ? EISDIR : ENOMEM, path);
  }
  file->fd = fd;
  strcpy(file->path, path);
  out->plugin_file = file;
  succeed(status);
}

static void close_file(TF_RandomAccessFile* out) {
  File* file = out->plugin_file;
  close(file->fd);
  free(file);
}

static int64_t read_file(const TF_RandomAccessFile* in, uint64_t offset, size_t n, char* buffer,
                         TF_Status* status) {
  File* file = in->plugin_file;
  size_t done = 0;
  request();
  int64_t asked = now();
  while (done < n) {
    size_t wanted = n - done < PIECE ? n - done : PIECE;
    ssize_t got = pread(file->fd, buffer + done, wanted, (off_t)(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      fail(status, errno, file->path);
      return -1;
    }
    if (got == 0) {
      TF_SetStatus(status, TF_OUT_OF_RANGE, "end of file");
      return (int64_t)done;
    }
    arrive(got, asked);
    done += (size_t)got;
  }
  succeed(status);
  return (int64_t)done;
}

static const TF_RandomAccessFileOps file_ops = {.cleanup = close_file, .read = read_file};

/* The file system. */

static void init(TF_Filesystem* filesystem, TF_Status* status) { succeed(status); }
static void cleanup(TF_Filesystem* filesystem) {}

static void get_stat(const TF_Filesystem* filesystem, const char* path, TF_FileStatistics* out,
                     TF_Status* status) {
  struct stat found;
  request();
  if (stat(path, &found) < 0) return fail(status, errno, path);
  out->length = found.st_size;
  out->mtime_nsec = found.st_mtim.tv_sec * 1000000000LL + found.st_mtim.tv_nsec;
  out->is_directory = S_ISDIR(found.st_mode);
  succeed(status);
}

static void path_exists(const TF_Filesystem* filesystem, const char* path, TF_Status* status) {
  request();
  if (access(path, F_OK) < 0) return fail(status, errno, path);
  succeed(status);
}

static void free_entries(char** entries, int count) {
  while (count > 0) free(entries[--count]);
  free(entries);
}

static int get_children(const TF_Filesystem* filesystem, const char* path, char*** out,
                        TF_Status* status) {
  request();
  DIR* folder = opendir(path);
  if (!folder) {
    fail(status, errno, path);
    return -1;
  }
  char** entries = NULL;
  int count = 0;
  bool enough_memory = true;
  for (struct dirent* entry; enough_memory && (entry = readdir(folder));) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    char** more = realloc(entries, (size_t)(count + 1) * sizeof(char*));
    char* name = more ? strdup(entry->d_name) : NULL;
    if (more) entries = more;
    if (name) entries[count++] = name;
    enough_memory = name != NULL;
  }
  closedir(folder);
  if (!enough_memory) {
    free_entries(entries, count);
    fail(status, ENOMEM, path);
    return -1;
  }
  *out = entries;
  succeed(status);
  return count;
}

/* What is missing here, TensorFlow derives from it (glob, size, is-a-folder) or refuses (writing). */
static const TF_FilesystemOps filesystem_ops = {
    .init = init,
    .cleanup = cleanup,
    .new_random_access_file = new_random_access_file,
    .path_exists = path_exists,
    .stat = get_stat,
    .translate_name = translate_name,
    .get_children = get_children,
};

/* TensorFlow frees the tables that it is given. */
static void* copy(const void* from, size_t size) {
  void* to = malloc(size);
  if (!to) abort();
  return memcpy(to, from, size);
}

void TF_InitPlugin(TF_FilesystemPluginInfo* info) {
  TF_FilesystemPluginOps ops = {.scheme = copy(SCHEME, sizeof(SCHEME))};
  TF_SetFilesystemVersionMetadata(&ops);
  ops.random_access_file_ops = copy(&file_ops, sizeof(file_ops));
  ops.filesystem_ops = copy(&filesystem_ops, sizeof(filesystem_ops));
  info->plugin_memory_allocate = malloc;
  info->plugin_memory_free = free;
  info->num_schemes = 1;
  info->ops = copy(&ops, sizeof(ops));
}
