/* Finds the picture and the label in a serialised tf.train.Example. */
#ifndef TFSCALE_EXAMPLE_H
#define TFSCALE_EXAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  const uint8_t *encoded; /* points into the example */
  size_t size;
  int64_t label;
} example;

/* Returns whether there is exactly one value of each of the two fields, in a message without a
   fault on the way to them. What it is not sure of (a field given twice) it declines. */
bool example_parse(const uint8_t *bytes, size_t size, example *found);

#endif
