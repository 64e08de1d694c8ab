/* Decodes a window of a JPEG and resizes it. */
#ifndef TFSCALE_JPEG_WINDOW_H
#define TFSCALE_JPEG_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "resize.h"
#include "window.h"

/* Writes the window, resized, to `out` [height][width][3] of `r`, and returns whether it could.

   It declines, and leaves `out` in any state, whatever is not a plain, sound and sensible JPEG:
   another format, no end marker at the very end, four components, arithmetic coding, any error or
   warning of the decoder, a window that is not inside the picture, a size that only an attack has.

   `scaled`: where the window has at least 2, 4 or 8 times the output's height and width, the
   picture is decoded at 1/2, 1/4 or 1/8 of its size, and the window's four numbers are divided by
   the same, rounded down: tf.io.decode_and_crop_jpeg with that `ratio` and window. */
bool jpeg_window_decode(const uint8_t *bytes, size_t size, window w, bool flip, bool scaled,
                        resizer *r, uint8_t *out);

#endif
