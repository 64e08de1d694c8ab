/* Resizes a window of a decoded picture, in the form in which the cache keeps it. */
#ifndef TFSCALE_KEPT_PICTURE_H
#define TFSCALE_KEPT_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "resize.h"
#include "window.h"

/* Writes the window, resized, to `out` [height][width][3] of `r`, and returns whether it could: not
   where the bytes are no kept picture (see cache_pictures.py) or the window is not inside it. */
bool kept_picture_resize(const uint8_t *bytes, size_t size, window w, bool flip, resizer *r,
                         uint8_t *out, int64_t *label);

#endif
