/* The bound: how many pictures a core can cut, decode and resize with nothing around it.

   bound LIST SIZE THREADS          answers each line "DRAIN SECONDS" of standard input with JSON
   bound LIST SIZE THREADS OUTPUT   writes every window's SIZE x SIZE x 3 bytes to OUTPUT, for tests

   LIST has a line for each picture: PATH COUNT, then COUNT windows: TOP LEFT HEIGHT WIDTH FLIP.
   All files are in memory before the clock runs. libjpeg-turbo decodes the rows and columns of the
   window alone, with the accurate transform; its "fancy" upsampling of colour is on, as in
   TensorFlow. The resize is bilinear, with two taps an axis and half-pixel centres. */

#include <emmintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jpeglib.h>

enum { MARGIN = 16 }; /* bytes that a vector load may read past the last pixel */
enum { OFF = 8 };     /* of rows from a multiple of 16 bytes */
enum { RING = 8 };    /* rows that are kept: few enough for the nearest cache */
enum { BITS = 7, ONE = 1 << BITS } /* of a weight: 255 * ONE fits in 16 bits with a sign */;

typedef struct {
  int top, left, height, width, flip;
} Window;

typedef struct {
  char path[512];
  unsigned char *bytes;
  size_t size;
  Window *windows;
  int count;
} Picture;

typedef struct { /* where an output row or column lies: between `first` and `second` */
  int first, second, weight; /* of the second, out of ONE */
} Tap;

typedef struct {
  int size;
  unsigned char *rows;         /* a ring of decoded rows */
  size_t rows_bytes;
  int16_t *blended;            /* one row, two rows of the window blended */
  size_t blended_count;
  Tap *across;
  unsigned char *output;
} Workspace;

typedef struct { /* what one thread does in a turn */
  const Picture *pictures;
  int count;
  double seconds;
  long next; /* number of the picture that is its turn; every round takes other windows */
  long done;
  Workspace space;
} Share;

static _Thread_local const char *now_decoding = "";

static void fail(const char *what, const char *where) {
  fprintf(stderr, "bound: %s: %s\n", where, what);
  exit(1);
}

static void *allocate(size_t bytes) {
  void *memory = malloc(bytes);
  if (memory == NULL) fail("out of memory", "malloc");
  return memory;
}

static void on_jpeg_error(j_common_ptr decoder) {
  char text[JMSG_LENGTH_MAX];
  decoder->err->format_message(decoder, text);
  fail(text, now_decoding);
}

static void on_jpeg_message(j_common_ptr decoder) { (void)decoder; }

static double seconds_of(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

static Tap tap_at(int place, int from, int to) {
  double centre = (place + 0.5) * from / to - 0.5;
  if (centre < 0) centre = 0;
  int first = (int)centre;
  if (first > from - 1) first = from - 1;
  int second = first + 1 < from ? first + 1 : first;
  return (Tap){first, second, (int)((centre - first) * ONE + 0.5)};
}

/* Lays out the columns of the output: where each lies in a row of the window. */
static void lay_out(const Window *window, Workspace *space) {
  for (int i = 0; i < space->size; i++) {
    Tap tap = tap_at(i, window->width, space->size);
    space->across[window->flip ? space->size - 1 - i : i] =
        (Tap){3 * tap.first, 3 * tap.second, tap.weight};
  }
}

/* Makes one row of the output from two rows of the window. */
static void resize_row(const unsigned char *above, const unsigned char *below, int weight,
                       int values, Workspace *space, unsigned char *out) {
  const __m128i half = _mm_set1_epi32(1 << (2 * BITS - 1));
  int16_t *blended = space->blended;
  int16_t lower = (int16_t)weight, upper = (int16_t)(ONE - lower);
  for (int i = 0; i < values; i++) blended[i] = (int16_t)(above[i] * upper + below[i] * lower);
  for (int i = 0; i < space->size; i++) {
    Tap tap = space->across[i];
    __m128i first = _mm_loadl_epi64((const __m128i *)(blended + tap.first));
    __m128i second = _mm_loadl_epi64((const __m128i *)(blended + tap.second));
    __m128i weights = _mm_set1_epi32((ONE - tap.weight) | (tap.weight << 16));
    __m128i sum = _mm_madd_epi16(_mm_unpacklo_epi16(first, second), weights);
    sum = _mm_srai_epi32(_mm_add_epi32(sum, half), 2 * BITS);
    sum = _mm_packs_epi32(sum, sum);
    int pixel = _mm_cvtsi128_si32(_mm_packus_epi16(sum, sum));
    memcpy(out + 3 * i, &pixel, 4); /* the fourth byte is the next pixel's, or the margin's */
  }
}

static void reserve(Workspace *space, size_t stride, const Window *window) {
  size_t bytes = stride * RING + MARGIN + OFF, values = 3 * (size_t)window->width + MARGIN;
  if (bytes > space->rows_bytes) {
    free(space->rows);
    space->rows = allocate(bytes);
    space->rows_bytes = bytes;
  }
  if (values > space->blended_count) {
    free(space->blended);
    space->blended = allocate(values * sizeof(int16_t));
    memset(space->blended, 0, values * sizeof(int16_t));
    space->blended_count = values;
  }
}

static void decode_window(const Picture *picture, const Window *window, Workspace *space) {
  struct jpeg_decompress_struct decoder;
  struct jpeg_error_mgr errors;
  decoder.err = jpeg_std_error(&errors);
  errors.error_exit = on_jpeg_error;
  errors.output_message = on_jpeg_message;
  now_decoding = picture->path;
  jpeg_create_decompress(&decoder);
  jpeg_mem_src(&decoder, picture->bytes, picture->size);
  jpeg_read_header(&decoder, TRUE);
  decoder.out_color_space = JCS_RGB;
  decoder.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&decoder);
  if (window->top + window->height > (int)decoder.output_height ||
      window->left + window->width > (int)decoder.output_width)
    fail("a window reaches out of the picture", picture->path);
  /* The decoder works in whole blocks, so it begins somewhat left of the window. */
  JDIMENSION left = window->left, width = window->width;
  jpeg_crop_scanline(&decoder, &left, &width);
  if (window->top) jpeg_skip_scanlines(&decoder, window->top);
  size_t stride = (3 * (size_t)decoder.output_width + 31) / 32 * 32;
  reserve(space, stride, window);
  lay_out(window, space);
  /* Rows at a multiple of 16 bytes would be written past the cache, out of which they are read. */
  unsigned char *pixels = space->rows + OFF, *shifted = pixels + 3 * (window->left - (int)left);
  for (int row = 0, done = 0; row < space->size; row++) {
    Tap tap = tap_at(row, window->height, space->size);
    while (done <= tap.second) {
      JSAMPROW rows[RING / 2];
      for (int i = 0; i < RING / 2; i++) rows[i] = pixels + (done + i) % RING * stride;
      done += jpeg_read_scanlines(&decoder, rows, RING / 2);
    }
    resize_row(shifted + tap.first % RING * stride, shifted + tap.second % RING * stride,
               tap.weight, 3 * window->width, space, space->output + 3 * (size_t)row * space->size);
  }
  jpeg_abort_decompress(&decoder);
  jpeg_destroy_decompress(&decoder);
}

static void read_file(Picture *picture) {
  FILE *file = fopen(picture->path, "rb");
  if (file == NULL) fail("cannot be opened", picture->path);
  fseek(file, 0, SEEK_END);
  picture->size = (size_t)ftell(file);
  rewind(file);
  picture->bytes = allocate(picture->size + 1);
  if (fread(picture->bytes, 1, picture->size, file) != picture->size)
    fail("cannot be read", picture->path);
  fclose(file);
}

static Picture *read_list(const char *path, int *count) {
  FILE *list = fopen(path, "r");
  if (list == NULL) fail("cannot be opened", path);
  int room = 1024;
  Picture *pictures = allocate(room * sizeof *pictures), next;
  *count = 0;
  while (fscanf(list, "%511s %d", next.path, &next.count) == 2) {
    if (next.count < 1) fail("a picture without windows", next.path);
    next.windows = allocate(next.count * sizeof *next.windows);
    for (int i = 0; i < next.count; i++) {
      Window *w = next.windows + i;
      if (fscanf(list, "%d %d %d %d %d", &w->top, &w->left, &w->height, &w->width, &w->flip) != 5 ||
          w->top < 0 || w->left < 0 || w->height < 1 || w->width < 1)
        fail("a window that is none", next.path);
    }
    read_file(&next);
    if (*count == room && (pictures = realloc(pictures, (room *= 2) * sizeof *pictures)) == NULL)
      fail("out of memory", "realloc");
    pictures[(*count)++] = next;
  }
  if (!feof(list) || *count == 0) fail("not a list of pictures", path);
  fclose(list);
  return pictures;
}

static void write_all(const Picture *pictures, int count, Workspace *space, const char *path) {
  FILE *file = fopen(path, "wb");
  if (file == NULL) fail("cannot be opened", path);
  for (int i = 0; i < count; i++)
    for (int j = 0; j < pictures[i].count; j++) {
      decode_window(pictures + i, pictures[i].windows + j, space);
      fwrite(space->output, 3, (size_t)space->size * space->size, file);
    }
  if (fclose(file)) fail("cannot be written", path);
}

static void *decode_for_a_while(void *argument) {
  Share *share = argument;
  double end = seconds_of(CLOCK_MONOTONIC) + share->seconds;
  share->done = 0;
  do {
    for (int i = 0; i < 16; i++, share->done++, share->next++) {
      const Picture *picture = share->pictures + share->next % share->count;
      int round = (int)(share->next / share->count % picture->count);
      decode_window(picture, picture->windows + round, &share->space);
    }
  } while (seconds_of(CLOCK_MONOTONIC) < end);
  return NULL;
}

/* Lets all threads decode for a time; returns the number of pictures. */
static long decode(Share *shares, int threads, double seconds) {
  pthread_t started[threads];
  long done = 0;
  for (int i = 0; i < threads; i++) {
    shares[i].seconds = seconds;
    if (pthread_create(started + i, NULL, decode_for_a_while, shares + i))
      fail("no thread can be started", "pthread_create");
  }
  for (int i = 0; i < threads; i++) {
    pthread_join(started[i], NULL);
    done += shares[i].done;
  }
  return done;
}

int main(int argc, char **argv) {
  if (argc < 4 || atoi(argv[2]) < 1 || atoi(argv[3]) < 1)
    fail("use: bound LIST SIZE THREADS [OUTPUT]", "arguments");
  int count, size = atoi(argv[2]), threads = atoi(argv[3]);
  Picture *pictures = read_list(argv[1], &count);
  Share *shares = allocate(threads * sizeof *shares);
  for (int i = 0; i < threads; i++) {
    Workspace space = {.size = size,
                       .across = allocate(size * sizeof(Tap)),
                       .output = allocate(3 * (size_t)size * size + MARGIN)};
    /* Threads begin at different pictures, as they may share a cache of the processor. */
    shares[i] = (Share){pictures, count, 0, (long)count * i / threads, 0, space};
  }
  if (argc > 4) {
    write_all(pictures, count, &shares[0].space, argv[4]);
    return 0;
  }
  printf("{\"dtype\": \"uint8\", \"shape\": [1, %d, %d, 3]}\n", size, size);
  fflush(stdout);
  int drain;
  double seconds;
  while (scanf("%d %lf", &drain, &seconds) == 2) {
    if (drain) decode(shares, threads, 0.1); /* caches and clock rate settle */
    double wall = seconds_of(CLOCK_MONOTONIC), cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    long images = decode(shares, threads, seconds);
    cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"images\": %ld, \"wall_seconds\": %.9f, \"cpu_seconds\": %.9f}\n", images,
           seconds_of(CLOCK_MONOTONIC) - wall, cpu);
    fflush(stdout);
  }
  return 0;
}
