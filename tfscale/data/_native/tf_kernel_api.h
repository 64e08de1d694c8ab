/* The part of TensorFlow's C API for ops and kernels that ops.c uses.

   Declared here, so that the library can be built where TensorFlow is not yet installed (pip builds
   in an empty environment). libtensorflow_framework exports the symbols; they are found when
   tf.load_op_library loads the library. The API is stable: names and layouts do not change between
   versions of TensorFlow. */
#ifndef TFSCALE_TF_KERNEL_API_H
#define TFSCALE_TF_KERNEL_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "only little-endian machines are supported"
#endif

enum { TF_INT32 = 3, TF_UINT8 = 4, TF_STRING = 7, TF_INT64 = 9, TF_BOOL = 10 };
enum { TF_OK = 0, TF_INVALID_ARGUMENT = 3, TF_RESOURCE_EXHAUSTED = 8 };

typedef struct TF_Tensor TF_Tensor;
typedef struct TF_Status TF_Status;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;

extern TF_Status *TF_NewStatus(void);
extern void TF_DeleteStatus(TF_Status *);
extern void TF_SetStatus(TF_Status *, int code, const char *message);
extern int TF_GetCode(const TF_Status *);
extern const char *TF_Message(const TF_Status *);

extern int TF_NumDims(const TF_Tensor *);
extern int64_t TF_Dim(const TF_Tensor *, int axis);
extern void *TF_TensorData(const TF_Tensor *);
extern void TF_DeleteTensor(TF_Tensor *);

extern TF_OpDefinitionBuilder *TF_NewOpDefinitionBuilder(const char *name);
extern void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder *, const char *spec);
extern void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder *, const char *spec);
extern void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder *, const char *spec);
extern void TF_OpDefinitionBuilderSetShapeInferenceFunction(
    TF_OpDefinitionBuilder *, void (*)(TF_ShapeInferenceContext *, TF_Status *));
extern void TF_RegisterOpDefinition(TF_OpDefinitionBuilder *, TF_Status *);

extern TF_ShapeHandle *TF_NewShapeHandle(void);
extern void TF_DeleteShapeHandle(TF_ShapeHandle *);
extern void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext *, int, TF_ShapeHandle *,
                                             TF_Status *);
extern void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext *, int, TF_ShapeHandle *,
                                              TF_Status *);
extern void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext *, TF_Status *);

extern TF_KernelBuilder *TF_NewKernelBuilder(const char *op, const char *device,
                                             void *(*create)(TF_OpKernelConstruction *),
                                             void (*compute)(void *, TF_OpKernelContext *),
                                             void (*destroy)(void *));
extern void TF_RegisterKernelBuilder(const char *name, TF_KernelBuilder *, TF_Status *);
extern void TF_OpKernelConstruction_GetAttrBool(TF_OpKernelConstruction *, const char *name,
                                                unsigned char *value, TF_Status *);
extern void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction *, TF_Status *);
extern void TF_OpKernelContext_Failure(TF_OpKernelContext *, TF_Status *);
extern void TF_GetInput(TF_OpKernelContext *, int, TF_Tensor **, TF_Status *);
extern TF_Tensor *TF_AllocateOutput(TF_OpKernelContext *, int, int type, const int64_t *dims,
                                    int num_dims, size_t bytes, TF_Status *);

/* An element of a string tensor: 24 bytes, the two lowest bits of the first one its kind. */
typedef union {
  struct {
    uint8_t size; /* length << 2 | SMALL */
    char bytes[23];
  } small;
  struct {
    size_t size; /* length << 2 | LARGE */
    size_t capacity;
    char *bytes; /* of malloc, capacity + 1 of them, the last in use a zero */
  } large;
  struct {
    uint32_t size, offset, count; /* the bytes lie `offset` bytes behind this element */
  } offset;
  struct {
    size_t size;
    const char *bytes;
  } view;
} TF_TString;

_Static_assert(sizeof(TF_TString) == 24, "the layout of a string tensor's element");

enum { TF_TSTR_SMALL = 0, TF_TSTR_LARGE = 1, TF_TSTR_OFFSET = 2, TF_TSTR_VIEW = 3 };
enum { TF_TSTR_SMALL_CAPACITY = 22 };

static inline size_t tstring_size(const TF_TString *string) {
  switch (string->small.size & 3) {
    case TF_TSTR_SMALL: return string->small.size >> 2;
    case TF_TSTR_OFFSET: return string->offset.size >> 2;
    default: return string->view.size >> 2;
  }
}

static inline const char *tstring_bytes(const TF_TString *string) {
  switch (string->small.size & 3) {
    case TF_TSTR_SMALL: return string->small.bytes;
    case TF_TSTR_LARGE: return string->large.bytes;
    case TF_TSTR_OFFSET: return (const char *)string + string->offset.offset;
    default: return string->view.bytes;
  }
}

/* Gives a new, empty element room for `size` bytes; NULL if there is no memory. */
static inline char *tstring_allocate(TF_TString *string, size_t size) {
  if (size <= TF_TSTR_SMALL_CAPACITY) {
    string->small.size = (uint8_t)(size << 2 | TF_TSTR_SMALL);
    string->small.bytes[size] = 0;
    return string->small.bytes;
  }
  size_t capacity = (size + 16) / 16 * 16 - 1;
  char *bytes = malloc(capacity + 1);
  if (!bytes) return NULL;
  bytes[size] = 0;
  string->large.size = size << 2 | TF_TSTR_LARGE;
  string->large.capacity = capacity;
  string->large.bytes = bytes;
  return bytes;
}

/* Makes an element that tstring_allocate filled empty again. */
static inline void tstring_clear(TF_TString *string) {
  if ((string->small.size & 3) == TF_TSTR_LARGE) free(string->large.bytes);
  memset(string, 0, sizeof *string);
}

#endif
