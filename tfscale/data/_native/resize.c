#include "resize.h"

#include <stdlib.h>
#include <string.h>

#define WEIGHT_ONE (1 << 14) /* horizontal weights */
#define FRACTION 7           /* fractional bits of a horizontally resized row: 255 << 7 fits int16 */

/* Where output position `x` is read: the first of the two taps, and the weight of the second. */
static int tap(int x, int size, int source_size, float *weight) {
  float scale = (float)source_size / (float)size;
  float position = ((float)x + 0.5f) * scale - 0.5f;
  if (position < 0) position = 0;
  int first = (int)position;
  if (first >= source_size - 1) {
    *weight = 0; /* the edge is both taps */
    return source_size - 1;
  }
  *weight = position - (float)first;
  return first;
}

static void across(const resizer *r, const uint8_t *pixels, int16_t *out) {
  for (int x = 0; x < r->width; x++) {
    const uint8_t *left = pixels + r->left[x];
    const int16_t *weight = r->weights + 2 * x;
    for (int c = 0; c < 3; c++) {
      int mixed = left[c] * weight[0] + left[c + 3] * weight[1];
      out[4 * x + c] = (int16_t)((mixed + (1 << (13 - FRACTION))) >> (14 - FRACTION));
    }
  }
}

static uint8_t between(int upper, int lower, int weight) {
  int mixed = upper + (((lower - upper) * weight + (1 << 14)) >> 15);
  return (uint8_t)((mixed + (1 << (FRACTION - 1))) >> FRACTION);
}

static void down(const int16_t *upper, const int16_t *lower, int weight, int width, uint8_t *out) {
  for (int x = 0; x < width; x++)
    for (int c = 0; c < 3; c++)
      out[3 * x + c] = between(upper[4 * x + c], lower[4 * x + c], weight);
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2")))

/* Two output pixels, in the two halves: 32-bit red, green, blue, and a zero. */
AVX2 static inline __m256i two_across(const resizer *r, const uint8_t *pixels, int first,
                                      int second) {
  const __m256i pairs = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,
                                         0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
  int32_t of_first, of_second;
  memcpy(&of_first, r->weights + 2 * first, 4);
  memcpy(&of_second, r->weights + 2 * second, 4);
  __m256i taps = _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)(pixels + r->left[first]))),
      _mm_loadl_epi64((const __m128i *)(pixels + r->left[second])), 1);
  __m256i weights = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi32(of_first)),
                                            _mm_set1_epi32(of_second), 1);
  __m256i mixed = _mm256_madd_epi16(_mm256_shuffle_epi8(taps, pairs), weights);
  return _mm256_srai_epi32(_mm256_add_epi32(mixed, _mm256_set1_epi32(1 << (13 - FRACTION))),
                           14 - FRACTION);
}

AVX2 static void across_avx2(const resizer *r, const uint8_t *pixels, int16_t *out) {
  for (int x = 0; x < r->width; x += 4) /* the tables are padded */
    _mm256_storeu_si256((__m256i *)(out + 4 * x),
                        _mm256_packs_epi32(two_across(r, pixels, x, x + 2),
                                           two_across(r, pixels, x + 1, x + 3)));
}

/* Sixteen values: four pixels. */
AVX2 static inline __m256i four_down(const int16_t *upper, const int16_t *lower, __m256i weight) {
  __m256i above = _mm256_loadu_si256((const __m256i *)upper);
  __m256i below = _mm256_loadu_si256((const __m256i *)lower);
  __m256i step = _mm256_mulhrs_epi16(_mm256_sub_epi16(below, above), weight);
  return _mm256_srli_epi16(
      _mm256_add_epi16(_mm256_add_epi16(above, step), _mm256_set1_epi16(1 << (FRACTION - 1))),
      FRACTION);
}

AVX2 static void down_avx2(const int16_t *upper, const int16_t *lower, int weight, int width,
                           uint8_t *out) {
  const __m256i every = _mm256_set1_epi16((int16_t)weight);
  const __m256i drop_fourth =
      _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, 0, 1, 2, 4, 5, 6, 8,
                       9, 10, 12, 13, 14, -1, -1, -1, -1);
  for (int x = 0; x < width; x += 8) {
    __m256i eight = _mm256_packus_epi16(four_down(upper + 4 * x, lower + 4 * x, every),
                                        four_down(upper + 4 * x + 16, lower + 4 * x + 16, every));
    eight = _mm256_shuffle_epi8(_mm256_permute4x64_epi64(eight, 0xd8), drop_fourth);
    /* Of each 16 bytes stored 4 are too many; inside the row the next store writes over them. */
    int bytes = 3 * (width - x);
    uint8_t last[28];
    uint8_t *target = bytes >= (int)sizeof last ? out + 3 * x : last;
    _mm_storeu_si128((__m128i *)target, _mm256_castsi256_si128(eight));
    _mm_storeu_si128((__m128i *)(target + 12), _mm256_extracti128_si256(eight, 1));
    if (target == last) memcpy(out + 3 * x, last, bytes < 24 ? (size_t)bytes : 24);
  }
}
#else
#define across_avx2 across
#define down_avx2 down
#endif

static bool has_avx2(void) {
#if defined(__x86_64__) && defined(__GNUC__)
  return __builtin_cpu_supports("avx2");
#else
  return false;
#endif
}

bool resizer_create(resizer *r, int height, int width, bool simd) {
  size_t padded = ((size_t)width + 7) / 8 * 8;
  memset(r, 0, sizeof *r);
  r->memory = calloc(padded, sizeof(int32_t) + 2 * sizeof(int16_t) + 2 * 4 * sizeof(int16_t));
  if (!r->memory) return false;
  r->height = height;
  r->width = width;
  r->left = r->memory;
  r->weights = (int16_t *)(r->left + padded);
  r->rows[0] = r->weights + 2 * padded;
  r->rows[1] = r->rows[0] + 4 * padded;
  r->simd = simd && has_avx2();
  return true;
}

void resizer_destroy(resizer *r) { free(r->memory); }

void resizer_begin(resizer *r, int source_height, int source_width, bool flip, uint8_t *out) {
  r->source_height = source_height;
  r->source_width = source_width;
  r->y = 0;
  r->out = out;
  for (int x = 0; x < r->width; x++) {
    float weight;
    int at = flip ? r->width - 1 - x : x;
    r->left[at] = 3 * tap(x, r->width, source_width, &weight);
    int right = (int)(weight * WEIGHT_ONE + 0.5f);
    r->weights[2 * at] = (int16_t)(WEIGHT_ONE - right);
    r->weights[2 * at + 1] = (int16_t)right;
  }
}

void resizer_push(resizer *r, int row, const uint8_t *pixels) {
  float weight;
  if (r->y == r->height || row < tap(r->y, r->height, r->source_height, &weight)) return;
  int16_t *resized = r->rows[row & 1];
  if (r->simd)
    across_avx2(r, pixels, resized);
  else
    across(r, pixels, resized);
  for (; r->y < r->height; r->y++) {
    int upper = tap(r->y, r->height, r->source_height, &weight);
    int lower = weight > 0 ? upper + 1 : upper;
    if (lower > row) return;
    int mix = (int)(weight * 32768 + 0.5f);
    if (mix > INT16_MAX) mix = INT16_MAX;
    uint8_t *out = r->out + 3 * (size_t)r->width * (size_t)r->y;
    (r->simd ? down_avx2 : down)(r->rows[upper & 1], r->rows[lower & 1], mix, r->width, out);
  }
}
