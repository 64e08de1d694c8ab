/* A part of a picture. */
#ifndef TFSCALE_WINDOW_H
#define TFSCALE_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
  int32_t top, left, height, width; /* pixels of the whole picture */
} window;

/* Whether it has pixels, all of them of a picture of that size. */
static inline bool window_inside(window w, int64_t height, int64_t width) {
  return w.top >= 0 && w.left >= 0 && w.height > 0 && w.width > 0 &&
         w.height <= height - w.top && w.width <= width - w.left;
}

#endif
