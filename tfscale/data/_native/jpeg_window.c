#include "jpeg_window.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 1005000
#error "needs libjpeg-turbo 1.5 or later, for jpeg_crop_scanline"
#endif

/* A header of 600 bytes can claim 65500 x 65500 pixels, and a progressive file repeat its scans. No
   photograph comes near these; TensorFlow judges those that do. */
#define MAX_PIXELS (1 << 26)
#define MAX_PIXELS_OF_ALL_SCANS (1 << 28)
#define MAX_COEFFICIENT_BYTES (256L << 20)

#define ROWS 4 /* as many as the decoder may give in one call */

typedef struct {
  struct jpeg_decompress_struct jpeg;
  struct jpeg_error_mgr errors;
  struct jpeg_progress_mgr progress;
  jmp_buf failed;
  uint8_t *memory; /* of some rows of pixels */
} decoder;

static void give_up(j_common_ptr jpeg) { longjmp(((decoder *)jpeg->client_data)->failed, 1); }

static void no_text(j_common_ptr jpeg) { (void)jpeg; }

/* A warning means damaged data. TensorFlow has pixels for some of it, so let it decide; to stop at
   the first bounds the time spent on a large picture of which there are few bytes. */
static void on_message(j_common_ptr jpeg, int level) {
  if (level < 0) give_up(jpeg);
}

static void on_progress(j_common_ptr common) {
  j_decompress_ptr jpeg = (j_decompress_ptr)common;
  int64_t pixels = (int64_t)jpeg->image_width * jpeg->image_height;
  if (pixels * jpeg->input_scan_number > MAX_PIXELS_OF_ALL_SCANS) give_up(common);
}

static int reduction(window w, const resizer *r) {
  int by = 8;
  while (by > 1 && (w.height / by < r->height || w.width / by < r->width)) by /= 2;
  return by;
}

/* Everything that may call give_up. */
static bool decode(decoder *d, const uint8_t *bytes, size_t size, window w, bool flip, bool scaled,
                   resizer *r, uint8_t *out) {
  j_decompress_ptr jpeg = &d->jpeg;
  jpeg_create_decompress(jpeg);
  jpeg->progress = &d->progress;
  jpeg->mem->max_memory_to_use = MAX_COEFFICIENT_BYTES;
  jpeg_mem_src(jpeg, bytes, size);
  jpeg_read_header(jpeg, TRUE);
  if (jpeg->num_components != 1 && jpeg->num_components != 3) return false;
  if (jpeg->arith_code || !window_inside(w, jpeg->image_height, jpeg->image_width)) return false;
  if ((int64_t)jpeg->image_height * jpeg->image_width > MAX_PIXELS) return false;

  jpeg->out_color_space = JCS_RGB;
  jpeg->dct_method = JDCT_ISLOW;
  jpeg->do_fancy_upsampling = TRUE;
  int by = scaled ? reduction(w, r) : 1;
  jpeg->scale_num = 1;
  jpeg->scale_denom = (unsigned)by;
  w = (window){w.top / by, w.left / by, w.height / by, w.width / by};
  jpeg_start_decompress(jpeg);
  /* The decoder starts at a block's edge, at or left of the column asked for. */
  JDIMENSION first = (JDIMENSION)w.left, columns = (JDIMENSION)w.width;
  jpeg_crop_scanline(jpeg, &first, &columns);
  if (w.top && jpeg_skip_scanlines(jpeg, (JDIMENSION)w.top) != (JDIMENSION)w.top) return false;

  size_t stride = (3 * (size_t)jpeg->output_width + RESIZE_PADDING + 31) / 32 * 32;
  d->memory = aligned_alloc(32, 32 + ROWS * stride);
  if (!d->memory) return false;
  JSAMPROW rows[ROWS];
  /* Rows at a multiple of 16 or 32 bytes are written past the cache (jdcolext-*.asm), and these are
     read at once: 10 % of the whole time went in waiting for them. */
  for (int i = 0; i < ROWS; i++) rows[i] = d->memory + 8 + (size_t)i * stride;
  size_t margin = 3 * ((size_t)w.left - first);
  resizer_begin(r, w.height, w.width, flip, out);
  for (int row = 0; row < w.height;) {
    int read = (int)jpeg_read_scanlines(jpeg, rows, ROWS);
    if (!read) return false;
    for (int i = 0; i < read && row < w.height; i++, row++)
      resizer_push(r, row, rows[i] + margin);
  }
  return true;
}

/* A function of its own, as a longjmp leaves the locals of the one that called setjmp undefined. */
static bool attempt(decoder *d, const uint8_t *bytes, size_t size, window w, bool flip, bool scaled,
                    resizer *r, uint8_t *out) {
  return !setjmp(d->failed) && decode(d, bytes, size, w, flip, scaled, r, out);
}

bool jpeg_window_decode(const uint8_t *bytes, size_t size, window w, bool flip, bool scaled,
                        resizer *r, uint8_t *out) {
  if (size < 5 || bytes[0] != 0xff || bytes[1] != 0xd8 || bytes[2] != 0xff) return false;
  if (bytes[size - 2] != 0xff || bytes[size - 1] != 0xd9) return false;
  decoder d = {.progress.progress_monitor = on_progress};
  d.jpeg.err = jpeg_std_error(&d.errors);
  d.jpeg.client_data = &d;
  d.errors.error_exit = give_up;
  d.errors.emit_message = on_message;
  d.errors.output_message = no_text;
  bool done = attempt(&d, bytes, size, w, flip, scaled, r, out);
  free(d.memory);
  jpeg_destroy_decompress(&d.jpeg);
  return done;
}
