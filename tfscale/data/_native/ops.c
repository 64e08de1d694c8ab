/* The three ops, registered when tf.load_op_library loads this library. */
#include "crc32c.h"
#include "example.h"
#include "jpeg_window.h"
#include "kept_picture.h"
#include "record_file.h"
#include "resize.h"
#include "tf_kernel_api.h"

#define MAX_INPUTS 4
#define MAX_OUTPUTS 3
#define MAX_SIDE 16384 /* of an output picture */

/* One call of a kernel: its tensors, and what has gone wrong. */
typedef struct {
  TF_OpKernelContext *context;
  TF_Status *status;
  TF_Tensor *inputs[MAX_INPUTS], *outputs[MAX_OUTPUTS];
} call;

static bool ok(const call *c) { return TF_GetCode(c->status) == TF_OK; }

static call call_begin(TF_OpKernelContext *context, int inputs) {
  call c = {.context = context, .status = TF_NewStatus()};
  for (int i = 0; i < inputs && ok(&c); i++) TF_GetInput(context, i, &c.inputs[i], c.status);
  return c;
}

static void call_end(call *c) {
  if (!ok(c)) TF_OpKernelContext_Failure(c->context, c->status);
  for (int i = 0; i < MAX_INPUTS; i++)
    if (c->inputs[i]) TF_DeleteTensor(c->inputs[i]);
  for (int i = 0; i < MAX_OUTPUTS; i++)
    if (c->outputs[i]) TF_DeleteTensor(c->outputs[i]);
  TF_DeleteStatus(c->status);
}

static void require(call *c, bool condition, int code, const char *message) {
  if (ok(c) && !condition) TF_SetStatus(c->status, code, message);
}

/* Requires that input `i` is a vector of `size` elements. */
static void require_vector(call *c, int i, int64_t size, const char *message) {
  require(c, ok(c) && TF_NumDims(c->inputs[i]) == 1 && TF_Dim(c->inputs[i], 0) == size,
          TF_INVALID_ARGUMENT, message);
}

static void *data(const TF_Tensor *tensor) { return TF_TensorData(tensor); }

static void *allocate(call *c, int i, int type, const int64_t *dims, int num_dims, size_t item) {
  if (!ok(c)) return NULL;
  size_t bytes = item;
  for (int axis = 0; axis < num_dims; axis++) bytes *= (size_t)dims[axis];
  c->outputs[i] = TF_AllocateOutput(c->context, i, type, dims, num_dims, bytes, c->status);
  return ok(c) ? data(c->outputs[i]) : NULL;
}

/* ---- TfscaleReadRecords ---- */

static void *read_create(TF_OpKernelConstruction *construction) {
  (void)construction;
  open_files *files = malloc(sizeof *files);
  if (files) open_files_create(files);
  return files;
}

static void read_destroy(void *kernel) {
  if (!kernel) return;
  open_files_destroy(kernel);
  free(kernel);
}

/* Leaves `payload` empty if anything is wrong. */
static void read_one(open_files *files, const TF_TString *name, int64_t number, int64_t offset,
                     int64_t length, TF_TString *payload) {
  char path[4096];
  size_t size = tstring_size(name);
  if (size == 0 || size >= sizeof path || offset < 0 || length < 0) return;
  memcpy(path, tstring_bytes(name), size);
  path[size] = 0;
  opened file;
  if (strlen(path) != size || !open_files_take(files, path, number, &file)) return;
  /* Before there is memory for it, as a wrong length may be any number. */
  if (length <= file.size - RECORD_OVERHEAD && offset <= file.size - RECORD_OVERHEAD - length) {
    char *bytes = tstring_allocate(payload, (size_t)length);
    if (!bytes || !record_read(file.descriptor, offset, (size_t)length, bytes))
      tstring_clear(payload);
  }
  open_files_give_back(files, file);
}

static void read_compute(void *kernel, TF_OpKernelContext *context) {
  call c = call_begin(context, 4);
  require(&c, kernel, TF_RESOURCE_EXHAUSTED, "no memory");
  require(&c, ok(&c) && TF_NumDims(c.inputs[0]) == 1 && TF_NumDims(c.inputs[1]) == 1,
          TF_INVALID_ARGUMENT, "paths and files must be vectors");
  int64_t paths = ok(&c) ? TF_Dim(c.inputs[0], 0) : 0, n = ok(&c) ? TF_Dim(c.inputs[1], 0) : 0;
  require_vector(&c, 2, n, "offsets must be a vector as long as files");
  require_vector(&c, 3, n, "lengths must be a vector as long as files");
  TF_TString *payloads = allocate(&c, 0, TF_STRING, &n, 1, sizeof(TF_TString));
  if (ok(&c)) {
    const TF_TString *names = data(c.inputs[0]);
    const int64_t *files = data(c.inputs[1]), *offsets = data(c.inputs[2]);
    const int64_t *lengths = data(c.inputs[3]);
    for (int64_t i = 0; i < n; i++)
      if (files[i] >= 0 && files[i] < paths)
        read_one(kernel, names + files[i], files[i], offsets[i], lengths[i], payloads + i);
  }
  call_end(&c);
}

static void read_shape(TF_ShapeInferenceContext *context, TF_Status *status) {
  TF_ShapeHandle *n = TF_NewShapeHandle();
  TF_ShapeInferenceContextGetInput(context, 1, n, status);
  if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextSetOutput(context, 0, n, status);
  TF_DeleteShapeHandle(n);
}

/* ---- TfscaleDecodeExamples and TfscaleResizePictures ---- */

static void *decode_create(TF_OpKernelConstruction *construction) {
  TF_Status *status = TF_NewStatus();
  unsigned char *scaled = malloc(1);
  if (scaled)
    TF_OpKernelConstruction_GetAttrBool(construction, "scaled", scaled, status);
  else
    TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory");
  if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
  TF_DeleteStatus(status);
  return scaled;
}

static bool decode_one(const void *scaled, const uint8_t *bytes, size_t size, window w, bool flip,
                       resizer *r, uint8_t *image, int64_t *label) {
  example found;
  if (!example_parse(bytes, size, &found)) return false;
  *label = found.label;
  return jpeg_window_decode(found.encoded, found.size, w, flip, *(const unsigned char *)scaled, r,
                            image);
}

static bool resize_one(const void *kernel, const uint8_t *bytes, size_t size, window w, bool flip,
                       resizer *r, uint8_t *image, int64_t *label) {
  (void)kernel;
  return kept_picture_resize(bytes, size, w, flip, r, image, label);
}

/* Makes the windows of all strings of input 0, each by `one`. */
static void windows_compute(const void *kernel, TF_OpKernelContext *context,
                            bool (*one)(const void *, const uint8_t *, size_t, window, bool,
                                        resizer *, uint8_t *, int64_t *)) {
  call c = call_begin(context, 4);
  require(&c, ok(&c) && TF_NumDims(c.inputs[0]) == 1, TF_INVALID_ARGUMENT,
          "the pictures must be a vector");
  int64_t n = ok(&c) ? TF_Dim(c.inputs[0], 0) : 0;
  require(&c,
          ok(&c) && TF_NumDims(c.inputs[1]) == 2 && TF_Dim(c.inputs[1], 0) == n &&
              TF_Dim(c.inputs[1], 1) == 4,
          TF_INVALID_ARGUMENT, "windows must be of shape [number of pictures, 4]");
  require_vector(&c, 2, n, "flip must be a vector, one for each picture");
  require_vector(&c, 3, 2, "size must be (height, width)");
  int32_t height = 0, width = 0;
  if (ok(&c)) {
    const int32_t *size = data(c.inputs[3]);
    height = size[0];
    width = size[1];
  }
  require(&c, height > 0 && width > 0 && height <= MAX_SIDE && width <= MAX_SIDE,
          TF_INVALID_ARGUMENT, "size must be of numbers from 1 to 16384");
  size_t pixels = 3 * (size_t)height * (size_t)width;
  uint8_t *images = allocate(&c, 0, TF_UINT8, (int64_t[]){n, height, width, 3}, 4, 1);
  int64_t *labels = allocate(&c, 1, TF_INT64, &n, 1, sizeof(int64_t));
  bool *done = allocate(&c, 2, TF_BOOL, &n, 1, sizeof(bool));
  resizer r = {0};
  require(&c, ok(&c) && resizer_create(&r, height, width, true), TF_RESOURCE_EXHAUSTED,
          "no memory");
  if (ok(&c)) {
    const TF_TString *strings = data(c.inputs[0]);
    const window *windows = data(c.inputs[1]);
    const bool *flip = data(c.inputs[2]);
    for (int64_t i = 0; i < n; i++) {
      uint8_t *image = images + (size_t)i * pixels;
      done[i] = one(kernel, (const uint8_t *)tstring_bytes(strings + i), tstring_size(strings + i),
                    windows[i], flip[i], &r, image, labels + i);
      if (done[i]) continue;
      memset(image, 0, pixels);
      labels[i] = 0;
    }
  }
  resizer_destroy(&r);
  call_end(&c);
}

static void decode_compute(void *kernel, TF_OpKernelContext *context) {
  windows_compute(kernel, context, decode_one);
}

static void resize_compute(void *kernel, TF_OpKernelContext *context) {
  windows_compute(kernel, context, resize_one);
}

static void windows_shape(TF_ShapeInferenceContext *context, TF_Status *status) {
  TF_ShapeHandle *n = TF_NewShapeHandle();
  TF_ShapeInferenceContextSetUnknownShape(context, status);
  if (TF_GetCode(status) == TF_OK) TF_ShapeInferenceContextGetInput(context, 0, n, status);
  for (int i = 1; i < 3 && TF_GetCode(status) == TF_OK; i++)
    TF_ShapeInferenceContextSetOutput(context, i, n, status);
  TF_DeleteShapeHandle(n);
}

/* ---- registration ---- */

/* Adds what the two ops that make windows have in common, behind their strings. */
static void add_windows(TF_OpDefinitionBuilder *op) {
  TF_OpDefinitionBuilderAddInput(op, "windows: int32");
  TF_OpDefinitionBuilderAddInput(op, "flip: bool");
  TF_OpDefinitionBuilderAddInput(op, "size: int32");
  TF_OpDefinitionBuilderAddOutput(op, "images: uint8");
  TF_OpDefinitionBuilderAddOutput(op, "labels: int64");
  TF_OpDefinitionBuilderAddOutput(op, "done: bool");
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, windows_shape);
}

__attribute__((constructor)) static void register_ops(void) {
  crc32c_prepare();
  TF_Status *status = TF_NewStatus();

  TF_OpDefinitionBuilder *op = TF_NewOpDefinitionBuilder("TfscaleReadRecords");
  TF_OpDefinitionBuilderAddInput(op, "paths: string");
  TF_OpDefinitionBuilderAddInput(op, "files: int64");
  TF_OpDefinitionBuilderAddInput(op, "offsets: int64");
  TF_OpDefinitionBuilderAddInput(op, "lengths: int64");
  TF_OpDefinitionBuilderAddOutput(op, "payloads: string");
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, read_shape);
  TF_RegisterOpDefinition(op, status);

  op = TF_NewOpDefinitionBuilder("TfscaleDecodeExamples");
  TF_OpDefinitionBuilderAddInput(op, "serialized: string");
  add_windows(op);
  TF_OpDefinitionBuilderAddAttr(op, "scaled: bool = false");
  TF_RegisterOpDefinition(op, status);

  op = TF_NewOpDefinitionBuilder("TfscaleResizePictures");
  TF_OpDefinitionBuilderAddInput(op, "pictures: string");
  add_windows(op);
  TF_RegisterOpDefinition(op, status);

  TF_RegisterKernelBuilder(
      "TfscaleReadRecords",
      TF_NewKernelBuilder("TfscaleReadRecords", "CPU", read_create, read_compute, read_destroy),
      status);
  TF_RegisterKernelBuilder(
      "TfscaleDecodeExamples",
      TF_NewKernelBuilder("TfscaleDecodeExamples", "CPU", decode_create, decode_compute, free),
      status);
  TF_RegisterKernelBuilder(
      "TfscaleResizePictures",
      TF_NewKernelBuilder("TfscaleResizePictures", "CPU", NULL, resize_compute, NULL), status);
  TF_DeleteStatus(status);
}
