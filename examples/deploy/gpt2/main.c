/* ./main gpt_weights.bin TOKEN COUNT: prints so many tokens that follow. */
#include <stdio.h>
#include <stdlib.h>
#include "gpt.h"

static gpt_state state;

static char *aligned(size_t n) {
  char *p = malloc(n + 64);
  return p ? p + 64 - (uintptr_t)p % 64 : NULL;
}

int main(int argc, char **argv) {
  FILE *file = argc == 4 ? fopen(argv[1], "rb") : NULL;
  if (!file || fseek(file, 0, SEEK_END)) return 2;
  const size_t n = (size_t)ftell(file);
  char *bytes = aligned(n);
  rewind(file);
  gpt_weights weights;
  if (!bytes || fread(bytes, 1, n, file) != n) return 2;
  if (gpt_weights_open(&weights, bytes, n) || gpt_weights_verify(&weights)) return 2;
  if (gpt_state_init(&state, &weights)) return 2;
  const gpt_forward_sizes sizes = {0};
  const size_t n_work = gpt_forward_workspace_bytes(&sizes);
  char *work = aligned(n_work);
  int64_t token = atoll(argv[2]);
  for (long k = atol(argv[3]); k > 0; k--) {
    int64_t next = 0;
    const gpt_status status =
        gpt_forward(&sizes, &token, &next, &weights, &state, work, n_work, NULL);
    if (status) {
      fprintf(stderr, "%s\n", gpt_strerror(status));
      return 1;
    }
    printf("%lld\n", (long long)(token = next));
  }
  return 0;
}
