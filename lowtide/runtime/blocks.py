"""Kernels of blocks, ready to be launched: by Triton on a GPU, or by its interpreter on the CPU.

In:  the source of a module (`codegen/triton/module`), the name of a function in it.
Out: a `BlockKernel`, called with the number of programs, then what the function takes.

Triton itself is imported here only, and when the first kernel is made. The interpreter has no
libdevice: PyTorch's functions stand in for it there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import linecache
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from lowtide.errors import BackendError

SLACK = 1 << 16  # by which a block may stand out beyond the end
LARGE = 1 << 31  # bytes of a tensor, or a place: then places are counted in 64 bits
_NAMES = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "rsqrt", "sqrt", "sin", "cos", "tan",
    "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    "erfc", "pow", "floor", "ceil", "trunc", "copysign", "fmod",
)  # fmt: skip
_OTHER_NAMES = {"rint": torch.round}


def power(n: int) -> int:
    """The least power of two that is not less; 16 at least, as products of blocks take no less."""
    return max(1 << max(n - 1, 0).bit_length(), 16)


@functools.cache
def is_installed() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def identity(device: torch.device | None) -> str:
    """What a kernel's time depends on beside its text: the GPU, and the version of Triton."""
    import triton

    is_gpu = device is not None and device.type == "cuda"
    gpu = torch.cuda.get_device_name(device) if is_gpu else "interpreter"
    return f"{gpu} triton {triton.__version__}"


def load(source: str, interpreted: bool) -> dict[str, Any]:
    """The functions of a module, by name. Raises BackendError without Triton."""
    if not is_installed():
        raise BackendError(
            "kernels for GPUs need Triton, which comes with PyTorch's CUDA builds: "
            "pip install triton, or run without lowtide on this device"
        )
    return _loaded(source, interpreted)


@functools.lru_cache(maxsize=1024)
def _loaded(source: str, interpreted: bool) -> dict[str, Any]:
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    filename = f"<lowtide blocks {digest}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {"__name__": f"lowtide_blocks_{digest}"}
    if interpreted:
        from triton.runtime.interpreter import InterpretedFunction

        scope |= {"jit": InterpretedFunction, "lib": _stand_in()}
    else:
        import triton
        from triton.language.extra import libdevice

        scope |= {"jit": triton.jit, "lib": libdevice}
    exec(compile(source, filename, "exec"), scope)
    if interpreted:
        scope |= _in_place_of_tritons()
    return scope


class KernelFault(Exception):
    """A kernel cannot be launched; nothing was written. PyTorch must run what it stands for."""


class BlockKernel:
    """One function of a module."""

    def __init__(self, function: Any, warps: int, interpreted: bool) -> None:
        self.function = function
        self.warps = warps
        self.interpreted = interpreted
        self.faults: dict[tuple[int, ...], str] = {}  # why it was refused, by its widths

    def __call__(self, programs: int, reach: int, *given: Any, **widths: int) -> None:
        """Launches so many programs on the current stream of the tensors' device. `reach`: the
        largest place that they count.

        Raises KernelFault where the compiler or the driver refuses it, with one warning."""
        if programs == 0:
            return
        key = tuple(widths.values())
        if key in self.faults:
            raise KernelFault(self.faults[key])
        import triton.language as tl

        tensors = [x for x in given if isinstance(x, Tensor)]
        wide = max(reach + SLACK, *(t.untyped_storage().nbytes() for t in tensors)) >= LARGE
        options: dict[str, Any] = {
            **widths,
            "INDEX": tl.int64 if wide else tl.int32,
            "PRECISION": _precision(),
        }
        if self.interpreted:
            given = tuple(_as_double(x) if isinstance(x, float) else x for x in given)
            place: Any = contextlib.nullcontext()
        else:
            options |= {"num_warps": self.warps, "enable_fp_fusion": False}
            place = torch.cuda.device_of(tensors[0])
        try:
            with place:
                self.function[(programs,)](*given, **options)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            fault = f"a kernel for {tensors[0].device} is refused: {_in_short(error)}"
            self.faults[key] = fault
            warnings.warn(f"{fault}; PyTorch runs it instead", RuntimeWarning, stacklevel=2)
            raise KernelFault(fault) from error


def _in_short(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


def _precision() -> str:
    """What torch says of products of float32."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


# ---- the interpreter ------------------------------------------------------------------------


def _as_double(x: float) -> Any:
    """A number as the interpreter takes it: it would round a Python float to float32."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(np.array([x], dtype=np.float64), tl.float64), tl.float64)


class _Functions:
    """Stands where libdevice does in compiled kernels."""


def _stand_in() -> _Functions:
    found = _Functions()
    for name in _NAMES:
        setattr(found, name, _interpreted(getattr(torch, name)))
    for name, function in _OTHER_NAMES.items():
        setattr(found, name, _interpreted(function))
    return found


def _in_place_of_tritons() -> dict[str, Any]:
    """Folds, which Triton has in a library that is not interpreted; roundings, which the
    interpreter cuts off; and comparisons of plain numbers, which it takes for numbers."""
    functions: dict[str, Callable[..., Tensor]] = {
        "sum": torch.sum,
        "prod": torch.prod,
        "greatest": torch.amax,
        "least": torch.amin,
        "bf16": lambda x: x.bfloat16().float(),
        "f16": lambda x: x.half().float(),
    }
    found = {f"lt_{name}": _interpreted(function) for name, function in functions.items()}
    return found | {"lt_flag": _flag}


def _flag(x: Any) -> Any:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(x.handle.data.astype(bool), tl.int1), tl.int1)


def _interpreted(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """A function of blocks, and of numbers after them, by one of PyTorch."""

    def call(*given: Any) -> Any:
        import numpy as np
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        blocks: list[Any] = [x for x in given if isinstance(x, tl.tensor)]
        tensors = [torch.from_numpy(np.ascontiguousarray(x.handle.data)) for x in blocks]
        numbers = [int(getattr(x, "value", x)) for x in given if not isinstance(x, tl.tensor)]
        found = function(*tensors, *numbers).to(tensors[0].dtype)
        kind = blocks[0].dtype.scalar
        is_block = found.ndim and any(x.type.is_block() for x in blocks)
        shaped = tl.block_type(kind, list(found.shape)) if is_block else kind
        return tl.tensor(TensorHandle(np.atleast_1d(found.numpy()), kind), shaped)

    return call


# ---- without a GPU --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What a kernel became for one kind of GPU."""

    capability: int
    cubin: bytes
    shared_bytes: int


SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # that one program may have


def compile_for(
    function: Any, parameters: Mapping[str, str], widths: Mapping[str, int], capability: int,
    warps: int, wide: bool = False,
) -> Compiled:  # fmt: skip
    """A function of a module for GPUs of a capability, 90 for an H100, on any machine.

    `parameters`: Triton's type of each one that is no constant; `widths`: the constants."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants: dict[str, Any] = {
        **widths, "INDEX": tl.int64 if wide else tl.int32, "PRECISION": _precision(),
    }  # fmt: skip
    source = ASTSource(
        fn=function,
        signature={**parameters, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
    )
    made = cast("Any", triton).compile(
        source,
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": warps, "enable_fp_fusion": False},
    )
    return Compiled(
        capability=capability, cubin=made.asm["cubin"], shared_bytes=made.metadata.shared
    )
