/* Reads single records of TFRecord files on local disks. */
#ifndef TFSCALE_RECORD_FILE_H
#define TFSCALE_RECORD_FILE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define OPEN_FILES 64

/* Files kept open between reads: at most one in each slot, file number f of the list in slot
   f % OPEN_FILES. Any number of threads may use it. */
typedef struct {
  pthread_mutex_t lock;
  struct {
    int descriptor; /* -1: none */
    int readers;
    dev_t device;
    ino_t inode;
  } slots[OPEN_FILES];
} open_files;

void open_files_create(open_files *);
void open_files_destroy(open_files *);

/* An opened file; `slot` is -1 where it is not kept. */
typedef struct {
  int descriptor, slot;
  int64_t size;
} opened;

/* Opens a regular file, or finds it open: the one that has that name now, not one that had it. */
bool open_files_take(open_files *, const char *path, int64_t number, opened *file);
void open_files_give_back(open_files *, opened file);

/* Bytes of a record besides its payload:
     8 length, 4 masked crc of the length, the payload, 4 masked crc of the payload */
#define RECORD_OVERHEAD 16

/* Reads the payload of the record at byte `offset`, which the file must be long enough for, to
   `payload` [length]; false if the length in the file or a checksum differs. */
bool record_read(int descriptor, int64_t offset, size_t length, char *payload);

#endif
