/* CRC-32C (Castagnoli), the checksum of TFRecord files. */
#ifndef TFSCALE_CRC32C_H
#define TFSCALE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Makes the tables; to be called once, before anything else here. */
void crc32c_prepare(void);

uint32_t crc32c(const void *bytes, size_t size);

/* The same without the processor's instruction. */
uint32_t crc32c_by_table(const void *bytes, size_t size);

/* As TFRecord files store it: rotated and offset, so that the checksum of data that holds its own
   checksum is no constant. */
static inline uint32_t crc32c_masked(const void *bytes, size_t size) {
  uint32_t crc = crc32c(bytes, size);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

#endif
