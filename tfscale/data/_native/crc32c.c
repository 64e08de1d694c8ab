#include "crc32c.h"

#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* bits reversed */
#define BLOCK 1024             /* bytes, of each of the three interleaved runs */

static uint32_t table[8][256]; /* [k][b]: the state that byte b leaves after k zero bytes */
static uint32_t shift[4][256]; /* the state after BLOCK zero bytes, byte by byte of the old one */

static uint32_t by_byte(uint32_t state, const uint8_t *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) state = state >> 8 ^ table[0][(state ^ bytes[i]) & 255];
  return state;
}

void crc32c_prepare(void) {
  static const uint8_t zeros[BLOCK];
  for (uint32_t b = 0; b < 256; b++) {
    uint32_t state = b;
    for (int bit = 0; bit < 8; bit++) state = state >> 1 ^ (state & 1 ? POLYNOMIAL : 0);
    table[0][b] = state;
  }
  for (int k = 1; k < 8; k++)
    for (int b = 0; b < 256; b++)
      table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
  /* The state is linear in its bits. */
  for (int bit = 0; bit < 32; bit++) {
    uint32_t moved = by_byte(1u << bit, zeros, BLOCK);
    for (int b = 0; b < 256; b++)
      if (b >> bit % 8 & 1) shift[bit / 8][b] ^= moved;
  }
}

uint32_t crc32c_by_table(const void *data, size_t size) {
  const uint8_t *bytes = data;
  uint32_t state = ~0u;
  for (; size >= 8; bytes += 8, size -= 8) {
    uint32_t low, high;
    memcpy(&low, bytes, 4);
    memcpy(&high, bytes + 4, 4);
    low ^= state;
    state = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^
            table[4][low >> 24] ^ table[3][high & 255] ^ table[2][high >> 8 & 255] ^
            table[1][high >> 16 & 255] ^ table[0][high >> 24];
  }
  return ~by_byte(state, bytes, size);
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

static uint64_t word(const uint8_t *bytes) {
  uint64_t value;
  memcpy(&value, bytes, 8);
  return value;
}

static uint32_t after_block(uint32_t state) {
  return shift[0][state & 255] ^ shift[1][state >> 8 & 255] ^ shift[2][state >> 16 & 255] ^
         shift[3][state >> 24];
}

/* The instruction takes three cycles and one can start in each, so three runs go side by side. */
__attribute__((target("sse4.2"))) static uint32_t by_instruction(const uint8_t *bytes,
                                                                 size_t size) {
  uint64_t state = ~0u;
  for (; size >= 3 * BLOCK; bytes += 3 * BLOCK, size -= 3 * BLOCK) {
    uint64_t second = 0, third = 0;
    for (int i = 0; i < BLOCK; i += 8) {
      state = _mm_crc32_u64(state, word(bytes + i));
      second = _mm_crc32_u64(second, word(bytes + BLOCK + i));
      third = _mm_crc32_u64(third, word(bytes + 2 * BLOCK + i));
    }
    state = after_block((uint32_t)state) ^ second;
    state = after_block((uint32_t)state) ^ third;
  }
  for (; size >= 8; bytes += 8, size -= 8) state = _mm_crc32_u64(state, word(bytes));
  for (; size; bytes++, size--) state = _mm_crc32_u8((uint32_t)state, *bytes);
  return ~(uint32_t)state;
}

uint32_t crc32c(const void *bytes, size_t size) {
  return __builtin_cpu_supports("sse4.2") ? by_instruction(bytes, size)
                                          : crc32c_by_table(bytes, size);
}
#else
uint32_t crc32c(const void *bytes, size_t size) { return crc32c_by_table(bytes, size); }
#endif
