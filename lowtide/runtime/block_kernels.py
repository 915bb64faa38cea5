"""Launches block kernels: by Triton on a GPU, or by its interpreter on the CPU.

In:  the source of a module (`codegen/triton/module`), the name of a function in it.
Out: a `BlockKernel`: `kernel(programs, reach, *tensors, *sizes, *numbers, **widths)` launches it.

Triton is imported when the first kernel is made. `runtime/cubins` compiles and launches kernels on
a GPU; `runtime/interpreted` runs them on the CPU.
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

SLACK = 1 << 16  # by which a block may reach past the end of an axis
MOST_PROGRAMS = (1 << 31) - 1  # of a launch: CUDA's limit for the first axis of a grid
LARGE = 1 << 31  # bytes of a tensor, or an index, from which on indices have 64 bits

_refused: dict[str, str] = {}  # by the source of a module: why it cannot be loaded


def power(n: int) -> int:
    """Return the least power of two >= n, at least 16, which products of blocks need."""
    return max(1 << max(n - 1, 0).bit_length(), 16)


@functools.cache
def missing() -> str:
    """Return why Triton cannot be imported, and what to do; "" if it can."""
    if importlib.util.find_spec("triton") is None:
        return "kernels for GPUs need Triton: pip install triton"
    try:
        for name in ("triton.compiler", "triton.language"):
            importlib.import_module(name)
    except Exception as error:  # a damaged or incompatible Triton may raise anything
        return (
            f"kernels for GPUs need Triton, but the installed one cannot be imported "
            f"({_in_short(error)}): pip install --force-reinstall triton"
        )
    return ""


@functools.cache
def warn_missing() -> None:
    """Warn once that PyTorch runs calls with CUDA tensors."""
    warnings.warn(
        f"{missing()}. PyTorch runs calls with CUDA tensors instead",
        RuntimeWarning,
        stacklevel=2,
    )


def version() -> str:
    """Return the version of Triton."""
    import triton

    return getattr(triton, "__version__", "of an unknown version")


def identity(device: torch.device | None) -> str:
    """Return what a kernel's time depends on, except its text: the GPU and Triton's version."""
    is_gpu = device is not None and device.type == "cuda"
    gpu = torch.cuda.get_device_name(device) if is_gpu else "interpreter"
    return f"{gpu} triton {version()}"


def load(source: str, interpreted: bool) -> dict[str, Any]:
    """Return the functions of a module by name. Raises BackendError without Triton, and KernelFault
    with one warning if this Triton cannot load the module."""
    if missing():
        raise BackendError(f"{missing()}, or run without lowtide on this device")
    if source not in _refused:
        try:
            return _loaded(source, interpreted)
        except Exception as error:
            _refused[source] = f"the installed Triton cannot load a module: {_in_short(error)}"
            _warn(_refused[source])
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
    """A kernel cannot be launched; it has written nothing. PyTorch must run its ops."""


class _Recording(threading.local):
    """`on`: whether this thread records a graph of Lowtide's, see `runtime/graphs`."""

    on = False


RECORDING = _Recording()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelParameters:
    """The parameters of a function, in order: tensors, sizes, numbers, `more`, then constants.

    `pointers`: Triton's types of the tensors. `dividing`: for each size, whether it is a factor of
    strides, so that code for multiples of 16 is faster. `numbers`: their number, all float64.
    `more`: Triton's types of further integers and pointers. `warps`: of each program. `stages`:
    steps of a sweep that overlap. `widths`: number of constants that a launch gives by name."""

    pointers: tuple[str, ...]
    dividing: tuple[bool, ...]
    numbers: int
    warps: int
    stages: int
    widths: int
    more: tuple[str, ...] = ()

    def types(self, wide: bool) -> list[str]:
        """Return Triton's types of all parameters except constants."""
        sizes = ["i64" if wide else "i32" for _ in self.dividing]
        numbers = ["fp64" for _ in range(self.numbers)]
        return [*self.pointers, *sizes, *numbers, *self.more]


class Form(NamedTuple):
    """A form in which a kernel is compiled. `wide`: indices have 64 bits. `multiples`: a bit for
    each parameter that is a multiple of 16."""

    device: torch.device
    wide: bool
    precision: str
    widths: tuple[int, ...]
    multiples: int


class BlockKernel(ABC):
    """One function of a module."""

    def __init__(self, function: Any, parameters: KernelParameters) -> None:
        self.function = function
        self.parameters = parameters
        self.faults: dict[Form, str] = {}  # the reasons of refusals

    def __call__(self, programs: int, reach: int, *given: Any, **widths: int) -> None:
        """Launch the programs on the current stream of the tensors' device. `reach`: an upper bound
        of their indices. Raises KernelFault, see `launch`."""
        if programs == 0:
            return
        count = len(self.parameters.pointers)
        tensors: Sequence[Tensor] = given[:count]
        arguments = [t.data_ptr() for t in tensors]
        arguments += given[count:]
        sizes: Sequence[int] = given[count : count + len(self.parameters.dividing)]
        wide = is_wide(reach, sizes, [t.untyped_storage().nbytes() for t in tensors])
        form = self.form(tensors[0].device, wide, arguments, tuple(widths.values()))
        self.launch(programs, form, arguments)

    def form(
        self,
        device: torch.device,
        wide: bool,
        like: Sequence[Any],
        widths: tuple[int, ...],
    ) -> Form:
        """Return the form for arguments, or for common divisors of the arguments of launches."""
        return Form(device, wide, precision(), widths, self._multiples(like))

    def launch(self, programs: int, form: Form, arguments: Sequence[Any]) -> None:
        """Launch the programs. `form`: valid for the arguments, which are addresses of tensors,
        sizes and numbers.

        Raises KernelFault, with a warning, if the compiler or the driver refuses the kernel."""
        if self.faults and form in self.faults:
            raise KernelFault(self.faults[form])
        if programs == 0:
            return
        if programs > MOST_PROGRAMS:  # not in `faults`: a later launch may have fewer
            fault = f"a kernel for {form.device} has {programs} programs, CUDA launches 2**31 - 1"
            _warn(fault)
            raise KernelFault(fault)
        try:
            self._launch(programs, form, arguments)
        except (torch.OutOfMemoryError, KernelFault):
            raise
        except Exception as error:
            if RECORDING.on:  # outside of a recording, the launch may succeed
                raise
            fault = f"a kernel for {form.device} is refused: {_in_short(error)}"
            if "out of memory" not in fault:  # there may be memory for the kernel's code later
                self.faults[form] = fault
            _warn(fault, remedy(fault))
            raise KernelFault(fault) from error

    @abstractmethod
    def _multiples(self, like: Sequence[Any]) -> int:
        """Return the bits of `Form.multiples`."""

    @abstractmethod
    def _launch(self, programs: int, form: Form, arguments: Sequence[Any]) -> None: ...


def constants(form: Form) -> tuple[Any, ...]:
    """Return the constants of a function, in order."""
    import triton.language as tl

    return (*form.widths, tl.int64 if form.wide else tl.int32, form.precision)


def is_wide(reach: int, sizes: Iterable[int], nbytes: Iterable[int]) -> bool:
    """Return whether indices need 64 bits. `nbytes`: of the tensors."""
    return max(reach + SLACK, *sizes, *nbytes) >= LARGE


_UPDATE = "update NVIDIA's driver, or install a build of PyTorch for an older CUDA"
_BUILD = "Triton compiles a file in C: `apt install gcc python3-dev`, or name a compiler in CC"
_REMEDIES = {  # by texts in the messages of Triton, its C compiler and the driver
    "C compiler": _BUILD,
    "CalledProcessError": _BUILD,
    "libcuda": "Triton did not find NVIDIA's driver: install it, then run `ldconfig` as root",
    "image is invalid": _UPDATE,
    "no kernel image": _UPDATE,
    "unsupported toolchain": _UPDATE,
    "out of memory": "free memory of the GPU: a kernel's code needs some, too",
}


def remedy(fault: str) -> str:
    """Return what to do about a refusal with this message, "" if unknown."""
    return next((what for text, what in _REMEDIES.items() if text in fault), "")


def _warn(fault: str, what_to_do: str = "") -> None:
    what_to_do = what_to_do or "`lowtide doctor` tests driver and Triton"
    warnings.warn(f"{fault}; PyTorch runs it instead. {what_to_do}", RuntimeWarning, stacklevel=3)


def _in_short(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"


def precision() -> str:
    """Return the precision of float32 products that PyTorch is set to. (`allow_tf32` raises if the
    user has set `fp32_precision`, which is right in both cases.)"""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
