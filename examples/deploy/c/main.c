/* Reads n, then n rows of x1 y1 x2 y2 score; prints the places of the boxes to keep. */
#include <stdio.h>
#include <stdlib.h>
#include "boxes.h"

int main(void) {
  boxes_nms_sizes sizes;
  long long n = 0;
  if (scanf("%lld", &n) != 1 || n < 0) return 2;
  sizes.v0 = sizes.v2 = n; /* boxes.shape[0], scores.shape[0] */
  const size_t n_work = boxes_nms_workspace_bytes(&sizes);
  float *boxes = malloc(sizeof(float) * 4 * (size_t)n + 1);
  float *scores = malloc(sizeof(float) * (size_t)n + 1);
  int64_t *kept = malloc(sizeof(int64_t) * (size_t)n + 1);
  char *memory = malloc(n_work + 64); /* the workspace begins at a multiple of 64 */
  if (!boxes || !scores || !kept || !memory) return 2;
  for (long long i = 0; i < n; i++) {
    float *b = boxes + 4 * i;
    if (scanf("%f %f %f %f %f", b, b + 1, b + 2, b + 3, scores + i) != 5) return 2;
  }
  int64_t count = 0;
  const boxes_status status = boxes_nms(&sizes, boxes, scores, 0.4, kept, n, &count, NULL,
                                        memory + 64 - (uintptr_t)memory % 64, n_work, NULL);
  if (status) {
    fprintf(stderr, "%s\n", boxes_strerror(status));
    return 1;
  }
  for (int64_t i = 0; i < count; i++) printf("%lld\n", (long long)kept[i]);
  free(boxes), free(scores), free(kept), free(memory);
  return 0;
}
