/* cuDNN's recurrent layers, as far as memory is concerned: their weights lie where PyTorch wants them
 * to, what they take is of sizes of our own, which is to be asked for; nothing is computed. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum { RNN_RELU, RNN_TANH, LSTM, GRU };
enum { FLOAT = 0, DOUBLE = 1 }; /* others have two bytes */

#define STATE_BYTES 2097408

typedef struct Layers {
  int mode, dtype, is_bidirectional, input, hidden, projected, count;
} Layers;

typedef struct Sequences {
  size_t cells; /* steps of all sequences */
} Sequences;

typedef struct Form {
  int dtype, count, sizes[3];
} Form;

/* 9.99.0: PyTorch refuses an older one than it was built with. */
size_t cudnnGetVersion(void) { return 99900; }
int cudnnGetProperty(int part, int *value) { return *value = part == 0 ? 9 : part == 1 ? 99 : 0, 0; }

int cudnnCreate(void **handle) { return *handle = calloc(1, 1), 0; }
int cudnnCreateTensorDescriptor(Form **form) { return *form = calloc(1, sizeof **form), 0; }
int cudnnDestroyTensorDescriptor(Form *form) { return free(form), 0; }
int cudnnCreateDropoutDescriptor(void **dropout) { return *dropout = calloc(1, 1), 0; }
int cudnnDestroyDropoutDescriptor(void *dropout) { return free(dropout), 0; }
int cudnnCreateRNNDescriptor(Layers **layers) { return *layers = calloc(1, sizeof **layers), 0; }
int cudnnDestroyRNNDescriptor(Layers *layers) { return free(layers), 0; }

int cudnnCreateRNNDataDescriptor(Sequences **made) { return *made = calloc(1, sizeof **made), 0; }
int cudnnDestroyRNNDataDescriptor(Sequences *sequences) { return free(sequences), 0; }

int cudnnSetDropoutDescriptor(void *dropout, void *handle, float p, void *state, size_t nbytes,
                              unsigned long long seed) {
  return 0;
}

int cudnnRestoreDropoutDescriptor(void *dropout, void *handle, float p, void *state, size_t nbytes,
                                  unsigned long long seed) {
  return nbytes < STATE_BYTES ? 2000 : 0; /* a wrong argument */
}

int cudnnDropoutGetStatesSize(void *handle, size_t *nbytes) { return *nbytes = STATE_BYTES, 0; }

int cudnnSetRNNDescriptor_v8(Layers *layers, int algorithm, int mode, int biases, int direction,
                             int input_mode, int dtype, int computed, int math, int32_t input,
                             int32_t hidden, int32_t projected, int32_t count, void *dropout,
                             uint32_t flags) {
  if (algorithm == 3 && hidden > 128) return 3000; /* not supported */
  *layers = (Layers){mode, dtype, direction, input, hidden, projected, count};
  return 0;
}

int cudnnSetRNNDataDescriptor(Sequences *sequences, int dtype, int layout, int steps, int batch,
                              int width, const int *lengths, void *padding) {
  sequences->cells = 0;
  for (int k = 0; k < batch; k++) sequences->cells += lengths[k];
  return 0;
}

static size_t itemsize(int dtype) { return dtype == FLOAT ? 4 : dtype == DOUBLE ? 8 : 2; }
static int gates(const Layers *x) { return x->mode == LSTM ? 4 : x->mode == GRU ? 3 : 1; }
static int directions(const Layers *x) { return x->is_bidirectional ? 2 : 1; }
static int passes(const Layers *x) { return x->count * directions(x); }

/* A pass's input is as wide as the outputs of the layer below. */
static size_t input_of(const Layers *x, int pass) {
  return pass < directions(x) ? x->input : x->projected * directions(x);
}

static size_t projection_of(const Layers *x) {
  return x->projected == x->hidden ? 0 : (size_t)x->projected * x->hidden;
}

static size_t matrices_of(const Layers *x, int pass) {
  return (size_t)gates(x) * x->hidden * (input_of(x, pass) + x->projected) + projection_of(x);
}

static size_t matrices_before(const Layers *x, int pass) {
  size_t sum = 0;
  for (int k = 0; k < pass; k++) sum += matrices_of(x, k);
  return sum;
}

static size_t weight_count(const Layers *x) {
  return matrices_before(x, passes(x)) + (size_t)passes(x) * 2 * gates(x) * x->hidden;
}

int cudnnGetRNNWeightSpaceSize(void *handle, const Layers *layers, size_t *nbytes) {
  return *nbytes = weight_count(layers) * itemsize(layers->dtype), 0;
}

int cudnnGetRNNTempSpaceSizes(void *handle, const Layers *layers, int is_training,
                              const Sequences *sequences, size_t *workspace, size_t *reserve) {
  size_t each = (size_t)layers->hidden * itemsize(layers->dtype);
  size_t rows = sequences->cells * passes(layers);
  *workspace = sequences->cells * gates(layers) * each + 4096 * (1 + is_training);
  if (reserve) *reserve = rows * (gates(layers) + 3) * each + 777;
  return 0;
}

int cudnnGetTensorNdDescriptor(const Form *form, int wanted, int *dtype, int *count, int *sizes,
                               int *strides) {
  *dtype = form->dtype;
  *count = form->count;
  for (int k = 0; k < form->count && k < wanted; k++) {
    sizes[k] = form->sizes[k];
    strides[k] = 1;
    for (int j = k + 1; j < form->count; j++) strides[k] *= form->sizes[j];
  }
  return 0;
}

static void place(Form *form, char **at, const Layers *x, const char *start, int rows, int columns) {
  *form = (Form){x->dtype, 3, {1, rows, columns}};
  *at = (char *)start;
}

/* Of a pass, linear layers 0 ... gates - 1 are of the input, as many again of the state, then comes a
 * projection, which has no bias. All biases lie behind all matrices. Either is asked for. */
int cudnnGetRNNWeightParams(void *handle, const Layers *x, int32_t pass, size_t nbytes,
                            const char *space, int32_t linear, Form *matrix, char **at_matrix,
                            Form *bias, char **at_bias) {
  size_t size = itemsize(x->dtype), rows = x->hidden, start = matrices_before(x, pass);
  int count = gates(x), of_state = linear > count ? linear - count : 0;
  int of_input = linear < count ? linear : count, is_projection = linear == 2 * count;
  if (matrix) {
    start += rows * (of_input * input_of(x, pass) + (size_t)of_state * x->projected);
    int columns = is_projection ? x->hidden : linear < count ? (int)input_of(x, pass) : x->projected;
    place(matrix, at_matrix, x, space + start * size, is_projection ? x->projected : rows, columns);
  }
  if (bias) {
    start = matrices_before(x, passes(x)) + ((size_t)pass * 2 * count + linear) * rows;
    place(bias, at_bias, x, space + start * size, rows, 1);
  }
  return 0;
}
