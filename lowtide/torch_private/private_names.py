"""Private names that users' programs write or that captured graphs have, as text."""

from __future__ import annotations

from typing import Final

ASSERT: Final = "torch._assert"
ASSERT_TENSOR: Final = "torch._assert_async"
WEIGHT_NORM: Final = "torch._weight_norm"
TRACING_STATE: Final = "torch._C._get_tracing_state"
# Where functions of PyTorch say that they are, and how they are written.
TENSOR_MODULE: Final = "torch._tensor."
FUNCTIONS: Final = "torch._C._VariableFunctions."
NN: Final = "torch._C._nn."
# Ops without a public name that public functions call.
FAST_PATHS: Final = (
    "torch._native_multi_head_attention",
    "torch._nested_tensor_from_mask",
    "torch._nested_tensor_from_mask_left_aligned",
    "torch._VF._pack_padded_sequence",
    "torch._VF._pad_packed_sequence",
    "torch._transformer_encoder_layer_fwd",
)
# The loop of a thread that a data loader starts.
PIN_MEMORY_LOOP: Final = "torch.utils.data._utils.pin_memory._pin_memory_loop"
# What the pickles of TorchScript archives name.
SCRIPT_PICKLE: Final = "torch.jit._pickle."
REBUILD_TENSOR: Final = "torch._utils._rebuild_tensor_v2"
REBUILD_QUANTIZED: Final = "torch._utils._rebuild_qtensor"
REBUILD_SPARSE: Final = "torch._utils._rebuild_sparse_tensor"
