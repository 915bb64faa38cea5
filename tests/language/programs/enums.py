"""Enums, and device and dtype values."""

from enum import Enum, IntEnum
from typing import Dict, List, Optional, Tuple

import torch
from torch import nn

from tests.language.support import module_program, program


class Color(Enum):
    RED = 1
    GREEN = 2
    BLUE = 3


class Mode(Enum):
    SUM = "sum"
    MEAN = "mean"


class Level(IntEnum):
    LOW = 1
    HIGH = 10


class Rate(Enum):
    SLOW = 0.5
    FAST = 2.0


@program(calls=lambda: [(Color.RED,), (Color.BLUE,)])
def compared(c: Color) -> bool:
    return c == Color.RED


@program(calls=lambda: [(Color.RED,), (Color.BLUE,)], torchscript=False)
def compared_not_equal_and_is(c: Color) -> Tuple[bool, bool, bool]:
    return c != Color.RED, c is Color.BLUE, c is not Color.BLUE


@program(calls=lambda: [(Color.RED,), (Color.GREEN,)])
def name_and_value(c: Color) -> Tuple[str, int]:
    return c.name, c.value + 1


@program(args=lambda: (1,))
def members_named(n: int) -> Tuple[int, str, str]:
    return Color.RED.value + n, Color.GREEN.name, Mode.SUM.value


@program(calls=lambda: [(True,), (False,)])
def returned(b: bool) -> Color:
    if b:
        return Color.RED
    return Color.GREEN


@program(calls=lambda: [(torch.ones(3), Mode.SUM), (torch.ones(3), Mode.MEAN)])
def chooses_branch(x: torch.Tensor, mode: Mode) -> torch.Tensor:
    if mode == Mode.SUM:
        return x.sum()
    elif mode == Mode.MEAN:
        return x.mean()
    else:
        raise RuntimeError("unknown mode")


def _weight(c: Color) -> float:
    if c == Color.RED:
        return 0.5
    return float(c.value)


@program(args=lambda: (Color.BLUE,))
def passed_on(c: Color) -> float:
    return _weight(c) + _weight(Color.RED)


@program(args=lambda: ([Color.RED, Color.BLUE, Color.RED],))
def in_lists(cs: List[Color]) -> Tuple[int, List[Color]]:
    n = 0
    for c in cs:
        if c == Color.RED:
            n += 1
    cs.append(Color.GREEN)
    return n, [Color.BLUE, cs[0]]


@program(args=lambda: ([Color.RED, Color.BLUE],), torchscript=False)
def membership(cs: List[Color]) -> Tuple[bool, bool]:
    return Color.RED in cs, Color.GREEN in cs


@program(args=lambda: ([Color.RED, Color.BLUE, Color.RED],), torchscript=False)
def dict_keys(cs: List[Color]) -> Dict[Color, int]:
    counts: Dict[Color, int] = {}
    for c in cs:
        counts[c] = counts.get(c, 0) + 1
    return counts


@program(args=lambda: ({"a": Color.RED},))
def dict_values(d: Dict[str, Color]) -> bool:
    d["b"] = Color.GREEN
    return d["a"] == d["b"]


@program(calls=lambda: [(Color.RED,), (None,)])
def optional(c: Optional[Color]) -> str:
    if c is None:
        return "none"
    return c.name


@program(args=lambda: (2,))
def iteration(n: int) -> Tuple[List[str], int]:
    names: List[str] = []
    total = 0
    for c in Color:
        names.append(c.name)
        total += c.value * n
    return names, total


@program(args=lambda: (2,), optional=True, torchscript=False)
def looked_up_by_value(n: int) -> Color:
    return Color(n)


@program(args=lambda: ("BLUE",), optional=True, torchscript=False)
def looked_up_by_name(s: str) -> Color:
    return Color[s]


@program(args=lambda: (Level.HIGH,), torchscript=False)
def int_enum(v: Level) -> Tuple[int, bool]:
    return v + 1, v > Level.LOW


@program(args=lambda: (Rate.FAST,))
def float_values(r: Rate) -> float:
    return r.value * Rate.SLOW.value


@program(args=lambda: (Color.RED,), torchscript=False)
def formatted(c: Color) -> Tuple[str, str]:
    return str(c), f"{c.name}={c.value}"


@module_program(args=lambda: (torch.arange(3.0),))
class EnumAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.mode = Mode.MEAN

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mode == Mode.MEAN:
            return x.mean()
        return x.sum()


@program(args=lambda: (torch.ones(2), "cpu"))
def device_made(x: torch.Tensor, name: str) -> Tuple[torch.device, bool, torch.Tensor]:
    d = torch.device(name)
    return d, d == x.device, x.to(d)


@program(args=lambda: (torch.ones(2),))
def device_parts(x: torch.Tensor) -> Tuple[str, Optional[int], bool]:
    return x.device.type, x.device.index, x.is_cuda


@program(args=lambda: (torch.ones(2), [torch.float64, torch.int32]), torchscript=False)
def dtypes_in_list(x: torch.Tensor, ts: List[torch.dtype]) -> List[torch.Tensor]:
    return [x.to(t) for t in ts]


@program(calls=lambda: [(torch.ones(2), None), (torch.ones(2), torch.float64)])
def optional_dtype(x: torch.Tensor, t: Optional[torch.dtype] = None) -> torch.Tensor:
    if t is None:
        t = torch.float16
    return x.to(t)


@program(args=lambda: (torch.ones(2, dtype=torch.float64),), torchscript=False)
def dtype_facts(x: torch.Tensor) -> Tuple[bool, int, torch.dtype]:
    return x.dtype.is_floating_point, x.dtype.itemsize, torch.promote_types(x.dtype, torch.int32)


@program(args=lambda: (torch.ones(2),), torchscript=False)
def finfo_limits(x: torch.Tensor) -> Tuple[float, int]:
    return torch.finfo(x.dtype).max, torch.iinfo(torch.int8).min


@program(calls=lambda: [(torch.ones(2), True), (torch.ones(2), False)], torchscript=False)
def limits_in_variables(x: torch.Tensor, wide: bool):
    if wide:
        whole = torch.iinfo(torch.int8)
    else:
        whole = torch.iinfo(x.long().dtype)
    info = torch.finfo(torch.float64) if wide else torch.finfo(torch.float32)
    found = [torch.finfo(torch.float32), torch.finfo(torch.float64)]
    eps = [torch.finfo(d).eps for d in (torch.float32, torch.float16)]
    for k in range(2):
        eps.append(found[k].eps)
    return x.clamp(whole.min, whole.max), whole.dtype, info.max, info.bits, x + info.tiny, eps


class Format(str, Enum):
    PLAIN = "plain"

    def __str__(self) -> str:
        return str.__str__(self)


@program(args=lambda: ("plain",), torchscript=False)
def text_of_a_text_member(s: str):
    is_mixed = issubclass(Format, str) and not issubclass(Format, (int, float))
    return str(Format.PLAIN), f"{Format(s)}", s == Format.PLAIN, is_mixed
