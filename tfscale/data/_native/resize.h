/* Bilinear resize of uint8 RGB, fed row by row, so that it holds two rows and never the picture.

   Two taps per axis at half-pixel centres: output column x is read at
     p = (x + 0.5) * source_width / width - 0.5,  left = max(floor(p), 0),
   and mixes `left` with the pixel on its right (itself at the edge) by p - floor(p); rows likewise.
   That is tf.image.resize(method="bilinear") followed by + 0.5 and truncation. The arithmetic is of
   15 bits, so that a result differs by at most one grey level, and only where the exact value lies
   within 0.03 of the middle between two. */
#ifndef TFSCALE_RESIZE_H
#define TFSCALE_RESIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Source rows must be readable up to this many bytes behind their end. */
#define RESIZE_PADDING 16

typedef struct {
  int height, width; /* of the output */
  int32_t *left;     /* [padded width] byte of the left tap in a source row */
  int16_t *weights;  /* [padded width][2] of 2^14, of the left tap and the right one */
  int16_t *rows[2];  /* [padded width][4] source rows of even and of odd number, resized to `width` */
  bool simd;
  void *memory;
  /* the picture at hand */
  int source_height, source_width, y;
  uint8_t *out;
} resizer;

/* Returns whether there was the memory. `simd`: use the processor's vector unit if it is there. */
bool resizer_create(resizer *, int height, int width, bool simd);
void resizer_destroy(resizer *);

/* Begins a picture; `out` [height][width][3]; `flip` mirrors left and right. */
void resizer_begin(resizer *, int source_height, int source_width, bool flip, uint8_t *out);

/* Takes source row number `row`; the rows must come in order, from 0 to the last. */
void resizer_push(resizer *, int row, const uint8_t *pixels);

#endif
