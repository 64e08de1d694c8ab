/* Wire format: a message is a run of (key, value), key = number << 3 | type. Here
     Example    { Features features = 1; }
     Features   { repeated Entry feature = 1; }       (a map)
     Entry      { string key = 1; Feature value = 2; }
     Feature    { BytesList bytes_list = 1 | FloatList float_list = 2 | Int64List int64_list = 3; }
     BytesList  { repeated bytes value = 1; }
     Int64List  { repeated int64 value = 1; }         (packed or not)
   There is no recursion: each message has a function of its own. */
#include "example.h"

#include <string.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
enum { BYTES_LIST = 1, INT64_LIST = 3 };

typedef struct {
  const uint8_t *next, *end;
} span;

typedef struct {
  uint64_t number;
  int type;
  uint64_t value; /* of a VARINT */
  span bytes;     /* of BYTES */
} field;

static bool read_varint(span *in, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (in->next == in->end) return false;
    uint8_t byte = *in->next++;
    if (shift == 63 && byte > 1) return false;
    *value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return true;
  }
  return false;
}

/* Reads a key and its value, which lies inside `in`; false where the message is malformed. */
static bool read_field(span *in, field *out) {
  uint64_t key, size;
  if (!read_varint(in, &key)) return false;
  out->number = key >> 3;
  out->type = key & 7;
  if (out->number == 0 || out->number > 536870911) return false;
  switch (out->type) {
    case VARINT: return read_varint(in, &out->value);
    case FIXED64: size = 8; break;
    case FIXED32: size = 4; break;
    case BYTES:
      if (!read_varint(in, &size)) return false;
      break;
    default: return false; /* groups, which nobody writes any more */
  }
  if (size > (uint64_t)(in->end - in->next)) return false;
  out->bytes = (span){in->next, in->next + size};
  in->next += size;
  return true;
}

static bool is(span text, const char *name) {
  size_t size = strlen(name);
  return (size_t)(text.end - text.next) == size && memcmp(text.next, name, size) == 0;
}

/* The one value of a Feature's list of kind `kind`, as a field; false if it is not exactly one. */
static bool only_value(span feature, uint64_t kind, field *value) {
  field list;
  if (!read_field(&feature, &list) || feature.next != feature.end) return false;
  if (list.number != kind || list.type != BYTES) return false;
  if (!read_field(&list.bytes, value) || list.bytes.next != list.bytes.end) return false;
  if (value->number != 1) return false;
  if (kind == BYTES_LIST || value->type == VARINT)
    return value->type == (kind == BYTES_LIST ? BYTES : VARINT);
  if (value->type != BYTES) return false;
  value->type = VARINT; /* it was packed */
  return read_varint(&value->bytes, &value->value) && value->bytes.next == value->bytes.end;
}

/* One entry of the map; counts in `pictures` and `labels` what it gives. */
static bool read_entry(span entry, example *found, int *pictures, int *labels) {
  span key = {NULL, NULL}, feature = {NULL, NULL};
  while (entry.next != entry.end) {
    field part;
    if (!read_field(&entry, &part)) return false;
    if (part.number > 2) continue;
    span *target = part.number == 1 ? &key : &feature;
    if (part.type != BYTES || target->next) return false;
    *target = part.bytes;
  }
  field value;
  if (!key.next) return true; /* the name is empty */
  if (is(key, "image/encoded")) {
    if (!feature.next || !only_value(feature, BYTES_LIST, &value)) return false;
    found->encoded = value.bytes.next;
    found->size = (size_t)(value.bytes.end - value.bytes.next);
    ++*pictures;
  } else if (is(key, "image/class/label")) {
    if (!feature.next || !only_value(feature, INT64_LIST, &value)) return false;
    found->label = (int64_t)value.value;
    ++*labels;
  }
  return true;
}

bool example_parse(const uint8_t *bytes, size_t size, example *found) {
  int pictures = 0, labels = 0;
  if (!size) return false;
  span message = {bytes, bytes + size};
  while (message.next != message.end) {
    field features;
    if (!read_field(&message, &features)) return false;
    if (features.number != 1) continue;
    if (features.type != BYTES) return false;
    while (features.bytes.next != features.bytes.end) {
      field entry;
      if (!read_field(&features.bytes, &entry)) return false;
      if (entry.number != 1) continue;
      if (entry.type != BYTES || !read_entry(entry.bytes, found, &pictures, &labels)) return false;
    }
  }
  return pictures == 1 && labels == 1;
}
