/* Filters 32-bit floats from stdin to stdout, a frame of 10 ms a call. Nothing is allocated:
   the state and the workspace are static. */
#include <stdio.h>
#include "denoise.h"

enum { FRAME = 160, WORK = 1 << 16 };

static denoise_state state;
static char memory[WORK + 64];

int main(void) {
  const denoise_forward_sizes sizes = {0}; /* all are constant */
  const denoise_weights weights = {0};     /* constants of the library */
  float in[FRAME], out[FRAME];
  if (denoise_forward_workspace_bytes(&sizes) > WORK) return 2;
  if (denoise_state_init(&state, &weights)) return 2;
  while (fread(in, sizeof *in, FRAME, stdin) == FRAME) {
    const denoise_status status = denoise_forward(
        &sizes, in, out, &weights, &state, memory + 64 - (uintptr_t)memory % 64, WORK, NULL);
    if (status) {
      fprintf(stderr, "%s\n", denoise_strerror(status));
      return 1;
    }
    fwrite(out, sizeof *out, FRAME, stdout);
  }
  return 0;
}
