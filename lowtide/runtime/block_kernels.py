"""Launches kernels of blocks: by Triton on a GPU, or by its interpreter on the CPU.

In:  the source of a module (`codegen/triton/module`), the name of a function in it.
Out: a `BlockKernel`, called with the number of programs, then what the function takes.

Triton is imported when the first kernel is made. `runtime/cubins` compiles and launches kernels on
a GPU; `runtime/interpreter_functions` adds functions that the interpreter lacks.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import linecache
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lowtide.errors import BackendError

SLACK = 1 << 16  # by which a block may stand out beyond the end
MOST_PROGRAMS = (1 << 31) - 1  # of a launch: what CUDA counts along a grid's first axis
LARGE = 1 << 31  # bytes of a tensor, or a place: then places are counted in 64 bits

_refused: dict[str, str] = {}  # why, by the source of a module


def power(n: int) -> int:
    """The least power of two that is not less; 16 at least, as products of blocks take no less."""
    return max(1 << max(n - 1, 0).bit_length(), 16)


@functools.cache
def missing() -> str:
    """Why there is no Triton here, and what to do; "" if it can be imported."""
    if importlib.util.find_spec("triton") is None:
        return "kernels for GPUs need Triton: pip install triton"
    try:
        for name in ("triton.compiler", "triton.language"):
            importlib.import_module(name)
    except Exception as error:  # whatever a damaged one, or one of another time, raises
        return (
            f"kernels for GPUs need Triton, and that which is installed cannot be imported "
            f"({_in_short(error)}): pip install --force-reinstall triton"
        )
    return ""


@functools.cache
def warn_missing() -> None:
    """Warns once that PyTorch runs what kernels for GPUs would."""
    warnings.warn(
        f"{missing()}. PyTorch runs what is called with CUDA tensors instead",
        RuntimeWarning,
        stacklevel=2,
    )


def version() -> str:
    """Triton's."""
    import triton

    return getattr(triton, "__version__", "of an unknown version")


def identity(device: torch.device | None) -> str:
    """What a kernel's time depends on beside its text: the GPU, and the version of Triton."""
    is_gpu = device is not None and device.type == "cuda"
    gpu = torch.cuda.get_device_name(device) if is_gpu else "interpreter"
    return f"{gpu} triton {version()}"


def load(source: str, interpreted: bool) -> dict[str, Any]:
    """The functions of a module, by name. Raises BackendError without Triton; KernelFault, with one
    warning, where it is one that lacks what the module needs."""
    if missing():
        raise BackendError(f"{missing()}, or run without lowtide on this device")
    if source not in _refused:
        try:
            return _loaded(source, interpreted)
        except Exception as error:
            _refused[source] = f"the Triton that is installed lacks something: {_in_short(error)}"
            _tell(_refused[source])
            raise KernelFault(_refused[source]) from error
    raise KernelFault(_refused[source])


@functools.lru_cache(maxsize=1024)
def _loaded(source: str, interpreted: bool) -> dict[str, Any]:
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    filename = f"<lowtide blocks {digest}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    code = compile(source, filename, "exec", dont_inherit=True)  # its annotations are values
    scope: dict[str, Any] = {"__name__": f"lowtide_blocks_{digest}"}
    if not interpreted:
        import triton
        from triton.language.extra import libdevice

        scope |= {"jit": triton.jit, "lib": libdevice}
        exec(code, scope)
        return scope
    from triton.runtime.interpreter import InterpretedFunction

    from lowtide.runtime.interpreter_functions import in_place_of_tritons, stand_in

    scope |= {"jit": InterpretedFunction, "lib": stand_in()}
    exec(code, scope)
    scope |= in_place_of_tritons()
    return scope


class KernelFault(Exception):
    """A kernel cannot be launched; nothing was written. PyTorch must run what it stands for."""


class _Recording(threading.local):
    """`on`: this thread records a graph of our own, see `runtime/graphs`."""

    on = False


RECORDING = _Recording()


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a function takes, in order: tensors, sizes, numbers, `more`, then constants.

    `pointers`: Triton's types of the tensors; `dividing`: of each size, whether memory is strided
    by it, so that it helps to know it a multiple of 16; `numbers`: how many, all float64; `more`:
    Triton's types of other integers and pointers; `warps`: of each program; `stages`: steps of a
    sweep that are under way at once; `widths`: how many of the constants a launch names."""

    pointers: tuple[str, ...]
    dividing: tuple[bool, ...]
    numbers: int
    warps: int
    stages: int
    widths: int
    more: tuple[str, ...] = ()

    def types(self, wide: bool) -> list[str]:
        """Triton's types of all that is no constant."""
        sizes = ["i64" if wide else "i32" for _ in self.dividing]
        numbers = ["fp64" for _ in range(self.numbers)]
        return [*self.pointers, *sizes, *numbers, *self.more]


class Form(NamedTuple):
    """What a kernel is compiled for. `wide`: places are counted in 64 bits; `multiples`: which of
    tensors and sizes are known to be multiples of 16, as bits."""

    device: torch.device
    wide: bool
    precision: str
    widths: tuple[int, ...]
    multiples: int


class BlockKernel(ABC):
    """One function of a module."""

    def __init__(self, function: Any, taken: Taken) -> None:
        self.function = function
        self.taken = taken
        self.faults: dict[Form, str] = {}  # why it was refused

    def __call__(self, programs: int, reach: int, *given: Any, **widths: int) -> None:
        """Launches so many programs on the current stream of the tensors' device. `reach`: the
        largest place that they count. Raises KernelFault, see `launch`."""
        if programs == 0:
            return
        count = len(self.taken.pointers)
        tensors: Sequence[Tensor] = given[:count]
        handed = [t.data_ptr() for t in tensors]
        handed += given[count:]
        sizes: Sequence[int] = given[count : count + len(self.taken.dividing)]
        wide = is_wide(reach, sizes, [t.untyped_storage().nbytes() for t in tensors])
        form = self.form(tensors[0].device, wide, handed, tuple(widths.values()))
        self.launch(programs, form, handed)

    def form(
        self,
        device: torch.device,
        wide: bool,
        like: Sequence[Any],
        widths: tuple[int, ...],
    ) -> Form:
        """The form for what is handed over, or for values of which that are multiples."""
        return Form(device, wide, precision(), widths, self._multiples(like))

    def launch(self, programs: int, form: Form, handed: Sequence[Any]) -> None:
        """Launches so many programs in a form that suits what is handed over: addresses of tensors,
        sizes, numbers.

        Raises KernelFault where the compiler or the driver refuses it, with one warning."""
        if self.faults and form in self.faults:
            raise KernelFault(self.faults[form])
        if programs == 0:
            return
        if programs > MOST_PROGRAMS:  # fewer may be launched in the same form
            fault = f"a kernel for {form.device} has {programs} programs, CUDA launches 2**31 - 1"
            _tell(fault)
            raise KernelFault(fault)
        try:
            self._launch(programs, form, handed)
        except (torch.OutOfMemoryError, KernelFault):
            raise
        except Exception as error:
            if RECORDING.on:  # what cannot be recorded may yet be launched
                raise
            fault = f"a kernel for {form.device} is refused: {_in_short(error)}"
            if "out of memory" not in fault:  # there was no room for its code, now
                self.faults[form] = fault
            _tell(fault, remedy(fault))
            raise KernelFault(fault) from error

    @abstractmethod
    def _multiples(self, like: Sequence[Any]) -> int:
        """See `Form`."""

    @abstractmethod
    def _launch(self, programs: int, form: Form, handed: Sequence[Any]) -> None: ...


def constants(form: Form) -> tuple[Any, ...]:
    """The constants of a function, in order."""
    import triton.language as tl

    return (*form.widths, tl.int64 if form.wide else tl.int32, form.precision)


def is_wide(reach: int, sizes: Iterable[int], nbytes: Iterable[int]) -> bool:
    """Must places be counted in 64 bits? `nbytes`: of the tensors."""
    return max(reach + SLACK, *sizes, *nbytes) >= LARGE


_UPDATE = "update NVIDIA's driver, or install a build of PyTorch for an older CUDA"
_BUILD = "Triton compiles a file in C: `apt install gcc python3-dev`, or name a compiler in CC"
_REMEDIES = {  # by what Triton, its C compiler and the driver say
    "C compiler": _BUILD,
    "CalledProcessError": _BUILD,
    "libcuda": "Triton did not find NVIDIA's driver: install it, then run `ldconfig` as root",
    "image is invalid": _UPDATE,
    "no kernel image": _UPDATE,
    "unsupported toolchain": _UPDATE,
    "out of memory": "free memory of the GPU: a kernel's code needs some, too",
}


def remedy(fault: str) -> str:
    """What to do about a refusal by what it says; "" where that tells nothing."""
    return next((what for said, what in _REMEDIES.items() if said in fault), "")


def _tell(fault: str, what_to_do: str = "") -> None:
    what_to_do = what_to_do or "`lowtide doctor` tests driver and Triton"
    warnings.warn(f"{fault}; PyTorch runs it instead. {what_to_do}", RuntimeWarning, stacklevel=3)


def _in_short(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


def precision() -> str:
    """What torch says of products of float32. (`allow_tf32` raises where the user has said it by
    `fp32_precision`; that has the answer however it was said.)"""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
