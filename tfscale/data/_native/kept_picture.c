#include "kept_picture.h"

#include <string.h>

#define HEADER 64 /* eight int64: label, height, width, zeros */
#define MAX_SIDE (1 << 24) /* so that no product overflows */

bool kept_picture_resize(const uint8_t *bytes, size_t size, window w, bool flip, resizer *r,
                         uint8_t *out, int64_t *label) {
  int64_t header[3];
  if (size < HEADER + RESIZE_PADDING) return false;
  memcpy(header, bytes, sizeof header);
  int64_t height = header[1], width = header[2];
  if (height <= 0 || width <= 0 || height > MAX_SIDE || width > MAX_SIDE) return false;
  if (3 * (uint64_t)(height * width) != size - HEADER - RESIZE_PADDING) return false;
  if (!window_inside(w, height, width)) return false;
  *label = header[0];
  resizer_begin(r, w.height, w.width, flip, out);
  for (int row = 0; row < w.height; row++)
    resizer_push(r, row, bytes + HEADER + 3 * ((w.top + row) * width + w.left));
  return true;
}
