/* Feeds the parts of tfscale/data/_native that parse files with damaged input; to be compiled with
   -fsanitize=address,undefined. Every buffer is a block of its own, of the exact size, so that one
   byte too far is found.

   usage: fuzz COUNT SEED FILE...     (*.jpg: pictures; *.kept: decoded ones as the cache keeps
                                       them; others: serialised tf.train.Examples) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "example.h"
#include "jpeg_window.h"
#include "kept_picture.h"

enum { EXAMPLE, PICTURE, KEPT, KINDS };

typedef struct {
  uint8_t *bytes;
  size_t size;
  int kind;
} input;

static uint64_t state;

static uint32_t draw(uint32_t below) { /* xorshift64* */
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (uint32_t)((state * 2685821657736338717u) >> 32) % below;
}

static void fail(const char *what) {
  fprintf(stderr, "%s\n", what);
  abort();
}

static input load(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) fail(path);
  int kind = strstr(path, ".jpg") ? PICTURE : strstr(path, ".kept") ? KEPT : EXAMPLE;
  input in = {.size = (size_t)ftell(file), .kind = kind};
  rewind(file);
  in.bytes = malloc(in.size ? in.size : 1);
  if (fread(in.bytes, 1, in.size, file) != in.size) fail(path);
  fclose(file);
  return in;
}

/* Gives a kept picture another shape, and the size that belongs to it. */
static size_t reshape(uint8_t *bytes, size_t size) {
  if (size < 83) return size;
  int64_t pixels = (int64_t)(size - 80) / 3, height = 1 + draw((uint32_t)pixels);
  int64_t shape[] = {height, pixels / height};
  memcpy(bytes + 8, shape, sizeof shape);
  return 80 + 3 * (size_t)(shape[0] * shape[1]);
}

/* A damaged copy; pictures mostly keep their end marker, without which they are not looked at. */
static input mutate(input in) {
  static const uint8_t special[] = {0, 1, 2, 3, 8, 0x11, 0x7f, 0x80, 0xc0, 0xc2, 0xc4, 0xd0, 0xd9,
                                    0xda, 0xdd, 0xff};
  size_t room = in.size + 64;
  uint8_t *bytes = malloc(room);
  size_t size = in.size;
  memcpy(bytes, in.bytes, size);
  for (uint32_t edits = draw(4); edits > 0 && size > 8; edits--) {
    /* Half of them in the headers. */
    uint32_t at = draw((uint32_t)(draw(2) && size > 700 ? 700 : size));
    switch (draw(5)) {
      case 0: bytes[at] ^= (uint8_t)(1u << draw(8)); break;
      case 1: bytes[at] = special[draw(sizeof special)]; break;
      case 2: bytes[at] = (uint8_t)draw(256); break;
      case 3: { /* cut out a piece */
        size_t piece = draw((uint32_t)(size - at) < 40 ? (uint32_t)(size - at) : 40);
        memmove(bytes + at, bytes + at + piece, size - at - piece);
        size -= piece;
        break;
      }
      default: /* double a few bytes */
        if (size + 8 > room || at + 8 > size) break;
        memmove(bytes + at + 8, bytes + at, size - at);
        size += 8;
    }
  }
  if (draw(8) == 0) size = draw((uint32_t)size + 1);
  if (in.kind == PICTURE && size > 2 && draw(16)) memcpy(bytes + size - 2, "\xff\xd9", 2);
  if (in.kind == KEPT && draw(2)) size = reshape(bytes, size);
  input out = {.bytes = malloc(size ? size : 1), .size = size, .kind = in.kind};
  memcpy(out.bytes, bytes, size);
  free(bytes);
  return out;
}

static int32_t side(int32_t most) {
  return draw(200) ? (int32_t)draw((uint32_t)most) : (int32_t)(draw(1u << 31) * 2u);
}

static bool decode(input in) {
  int height = 1 + (int)draw(40), width = 1 + (int)draw(40);
  size_t bytes = 3 * (size_t)height * (size_t)width;
  window w = {side(30), side(30), 1 + side(60), 1 + side(60)};
  bool flip = draw(2), scaled = draw(2), done[2];
  uint8_t *out[2];
  for (int simd = 0; simd < 2; simd++) {
    resizer r;
    if (!resizer_create(&r, height, width, simd)) fail("no memory");
    out[simd] = malloc(bytes);
    int64_t label;
    done[simd] =
        in.kind == KEPT
            ? kept_picture_resize(in.bytes, in.size, w, flip, &r, out[simd], &label)
            : jpeg_window_decode(in.bytes, in.size, w, flip, scaled, &r, out[simd]);
    resizer_destroy(&r);
  }
  if (done[0] != done[1]) fail("decoded with vectors or without, but not both");
  if (done[0] && memcmp(out[0], out[1], bytes)) fail("other pixels with vectors than without");
  free(out[0]);
  free(out[1]);
  return done[0];
}

static bool parse(input in) {
  example found;
  if (!example_parse(in.bytes, in.size, &found)) return false;
  if (found.encoded < in.bytes || found.encoded + found.size > in.bytes + in.size)
    fail("a picture outside of its example");
  return true;
}

int main(int count, char **arguments) {
  if (count < 4) fail("usage: fuzz COUNT SEED FILE...");
  long total = atol(arguments[1]), seen[KINDS] = {0}, done[KINDS] = {0};
  state = 0x9e3779b97f4a7c15u ^ strtoull(arguments[2], NULL, 10);
  crc32c_prepare();
  int files = count - 3;
  input *seeds = calloc((size_t)files, sizeof *seeds);
  for (int i = 0; i < files; i++) seeds[i] = load(arguments[3 + i]);
  for (long i = 0; i < total; i++) {
    input in = mutate(seeds[draw((uint32_t)files)]);
    seen[in.kind]++;
    done[in.kind] += in.kind == EXAMPLE ? parse(in) : decode(in);
    if (crc32c(in.bytes, in.size) != crc32c_by_table(in.bytes, in.size)) fail("two checksums");
    free(in.bytes);
  }
  for (int i = 0; i < files; i++) free(seeds[i].bytes);
  free(seeds);
  printf("%ld of %ld pictures decoded, %ld of %ld examples parsed, %ld of %ld kept resized\n",
         done[PICTURE], seen[PICTURE], done[EXAMPLE], seen[EXAMPLE], done[KEPT], seen[KEPT]);
  return 0;
}
