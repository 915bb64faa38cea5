"""Prints ops on ints, floats and bools as C, with Python's meaning.

In: the name of an op of the IR, operands (see `values`). Out: its value; statements on the way.

    py.add(v0, 1)            Index v0 + 1, no statement
    py.floordiv(r2, r3)      const int64_t z_r7 = lt_int_floordiv(z_r2, z_r3, &fault);
    math.log(d_3)            const double d_4 = log(d_3); and a check of its domain

Ints are 64 bits wide: a sum that would not fit raises, where Python's int grows. Invariant: what
Python computes to another value, or raises, gives a status or is refused here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from lowtide.c_library.values import (
    Frame,
    Real,
    Refused,
    Tensor,
    Truth,
    c_int,
    c_real,
    c_truth,
    is_bool,
    is_float,
    is_int,
)
from lowtide.ir.opdefs import find
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index_ranges import floordiv, mod, nonnegative

HELPERS: Final = """\
static int64_t lt_int_add(int64_t a, int64_t b, int64_t *fault) {
  int64_t c = 0;
  *fault |= __builtin_add_overflow(a, b, &c);
  return c;
}
static int64_t lt_int_sub(int64_t a, int64_t b, int64_t *fault) {
  int64_t c = 0;
  *fault |= __builtin_sub_overflow(a, b, &c);
  return c;
}
static int64_t lt_int_mul(int64_t a, int64_t b, int64_t *fault) {
  int64_t c = 0;
  *fault |= __builtin_mul_overflow(a, b, &c);
  return c;
}
static int64_t lt_int_floordiv(int64_t a, int64_t b, int64_t *fault) {
  if (!b || (b == -1 && a == INT64_MIN)) return *fault = 1, 0;
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
static int64_t lt_int_mod(int64_t a, int64_t b, int64_t *fault) {
  if (!b) return *fault = 1, 0;
  if (b == -1) return 0;
  return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
}
static double lt_real_div(double a, double b, int64_t *fault) {
  if (b == 0) return *fault = 1, 0;
  return a / b;
}
static double lt_real_floordiv(double a, double b, int64_t *fault) {
  if (b == 0) return *fault = 1, 0;
  double m = fmod(a, b), d = (a - m) / b;
  if (m != 0 && (b < 0) != (m < 0)) d -= 1;
  if (d == 0) return copysign(0, a / b);
  return floor(d) + (d - floor(d) > 0.5);
}
static double lt_real_mod(double a, double b, int64_t *fault) {
  if (b == 0) return *fault = 1, 0;
  double m = fmod(a, b);
  if (m == 0) return copysign(0, b);
  return (b < 0) != (m < 0) ? m + b : m;
}
static int64_t lt_int_of(double a, int64_t *fault) {
  if (!(a > -9223372036854775808.0 && a < 9223372036854775808.0)) return *fault = 1, 0;
  return (int64_t)a;
}
/* what a function of libm gives, where Python raises for its domain and for what is too large */
static double lt_real_checked(double r, double a, double b, int64_t *fault) {
  const int is_known = a == a && b == b;
  *fault |= (r != r && is_known) || (isinf(r) && isfinite(a) && isfinite(b));
  return r;
}
static double lt_from_f16(uint16_t h) {
  const int e = h >> 10 & 31, m = h & 1023;
  const double x = e == 31 ? (m ? NAN : INFINITY)
                           : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
  return h >> 15 ? -x : x;
}
static double lt_from_bf16(uint16_t h) {
  const uint32_t bits = (uint32_t)h << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
"""

_COMPARISONS: Final = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_BITS: Final = {"and": "&", "or": "|", "xor": "^"}
_CHECKED: Final = {"add": "add", "sub": "sub", "mul": "mul"}
_LIBM: Final = {
    "sqrt": "sqrt", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2",
    "log10": "log10", "log1p": "log1p", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin",
    "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "fabs": "fabs",
    "erf": "erf", "erfc": "erfc", "atan2": "atan2", "hypot": "hypot", "fmod": "fmod",
    "copysign": "copysign",
}  # fmt: skip
_WHOLE: Final = {"floor": "floor", "ceil": "ceil", "trunc": "trunc"}
_KINDS: Final = {"isnan": "isnan", "isinf": "isinf", "isfinite": "isfinite"}


class Numbers:
    """See the module's text. `lines`: the statements."""

    def __init__(self, frame: Frame, lines: list[str]) -> None:
        self.frame = frame
        self.lines = lines

    # -- variables --

    def int_of(self, text: str, low: int | None = None, bound: Index | None = None) -> Index:
        """Return a new variable that holds an int."""
        made = self.frame.variable(low, bound)
        self.lines.append(f"const int64_t {c_int(made)[1:-1]} = {text};")
        return made

    def real_of(self, text: str) -> Real:
        """Return a new variable that holds a float."""
        name = self.frame.fresh("d_")
        self.lines.append(f"const double {name} = {text};")
        return Real(name)

    def truth_of(self, text: str) -> Truth:
        """Return a new variable that holds a bool."""
        name = self.frame.fresh("b_")
        self.lines.append(f"const int {name} = {text};")
        return Truth(name)

    def item(self, x: Tensor) -> object:
        """Return the only element of a tensor."""
        if any(n.const != 1 for n in x.shape):
            raise Refused("reads a tensor whose size may be other than 1")
        self.frame.touch(x)
        match x.dtype.name:
            case "bool":
                return self.truth_of(f"*(const uint8_t *){x.at} != 0")
            case "f16" | "bf16" as name:
                return self.real_of(f"lt_from_{name}(*(const uint16_t *){x.at})")
            case "f32" | "f64":
                return self.real_of(f"*(const {x.dtype.c} *){x.at}")
            case _:
                return self.int_of(f"*(const {x.dtype.c} *){x.at}")

    # -- ops --

    def op(self, name: str, operands: Sequence[object]) -> object:
        """Return the value of an op. Raises Refused."""
        if all(_is_known(x) for x in operands):
            return self._folded(name, [_known(x) for x in operands])
        family, _, rest = name.partition(".")
        if family == "math":
            return self._math(rest, operands)
        found = self._python(rest, operands) if family == "py" else None
        if found is None:
            raise Refused("is computed by Python")
        return found

    def _folded(self, name: str, operands: Sequence[Any]) -> object:
        definition = find(name)
        if definition is None or definition.writes:
            raise Refused("is computed by Python")
        try:
            return definition.run(*operands)
        except Exception as error:
            raise Refused(f"raises {type(error).__name__}") from None

    def _python(self, name: str, x: Sequence[object]) -> object:
        if name in ("bool", "not"):
            return self._truth(x[0], negated=name == "not")
        if name in ("int", "index", "trunc"):
            return self.whole(x[0])
        if name == "float":
            return x[0] if is_float(x[0]) else Real(c_real(self._number(x[0])))
        if name in ("is", "is_not"):
            return self._is(x[0], x[1]) == (name == "is")
        if name == "contains":
            return self._contains(x[0], x[1])
        if name == "pos":
            return x[0]
        if name == "neg":
            return self._python("sub", [0, x[0]]) if is_int(x[0]) else self._negated(x[0])
        if name == "abs":
            return self._abs(x[0])
        if name in ("max", "min"):
            return self._extremum(name, x)
        if name == "round" and len(x) == 1:
            return self.int_of(f"lt_int_of(nearbyint({c_real(self._number(x[0]))}), &fault)")
        if name == "range_len":
            return self._steps(x)
        if len(x) == 2 and all(is_int(e) or is_float(e) or is_bool(e) for e in x):
            return self._binary(name, x[0], x[1])
        if name in ("eq", "ne") and (isinstance(x[0], str) or x[0] is None):
            return name == "ne"
        return None

    def _number(self, x: object) -> object:
        if not (is_int(x) or is_float(x) or is_bool(x)):
            raise Refused("is computed by Python")
        return x

    def _truth(self, x: object, *, negated: bool) -> object:
        """Return bool(x), or `not x`."""
        if x is None or isinstance(x, str | tuple | list | dict):
            return bool(cast("object", x)) != negated
        text = c_truth(self._number(x))
        return Truth(f"(!{text})") if negated else Truth(f"({text})")

    def whole(self, x: object) -> object:
        """Return int(x)."""
        self._number(x)
        if isinstance(x, Index):
            return x
        if is_bool(x):
            return self.int_of(f"(int64_t)({c_truth(x)})", 0, as_index(1))
        return self.int_of(f"lt_int_of({c_real(x)}, &fault)")

    def _is(self, a: object, b: object) -> bool:
        if a is None or b is None:
            return a is b
        raise Refused("compares objects")

    def _contains(self, xs: object, x: object) -> object:
        if not isinstance(xs, tuple | list):
            raise Refused("looks up a value in a container")
        parts = [
            c_truth(self._binary("eq", e, x))
            for e in cast("Sequence[object]", xs)
            if is_int(e) or is_float(e)
        ]
        return self.truth_of(" || ".join(parts) or "0")

    def _negated(self, x: object) -> object:
        if is_bool(x):
            return self.int_of(f"-(int64_t)({c_truth(x)})", -1, as_index(0))
        return self.real_of(f"-{c_real(self._number(x))}")

    def _abs(self, x: object) -> object:
        if is_float(x):
            return self.real_of(f"fabs({c_real(x)})")
        if not isinstance(x, Index):
            raise Refused("is computed by Python")
        if nonnegative(x):
            return x
        negative = self._python("neg", [x])
        return self.int_of(f"lt_max({c_int(x)}, {c_int(negative)})", 0)

    def _extremum(self, name: str, operands: Sequence[object]) -> object:
        if len(operands) == 1 and isinstance(operands[0], tuple | list):
            operands = cast("Sequence[object]", operands[0])
        found, *rest = operands
        for x in rest:
            found = self._larger(name, found, x)
        return found

    def _larger(self, name: str, a: object, b: object) -> object:
        if is_int(a) and is_int(b):
            x, y = _index(a), _index(b)
            above, below = (x, y) if name == "max" else (y, x)
            if nonnegative(above - below):
                return a
            if nonnegative(below - above):
                return b
            low = 0 if nonnegative(x) and nonnegative(y) else None
            bound = None
            if name == "min":
                bound = self._bound(x) or self._bound(y)
            elif self._bound(x) is not None and self._bound(y) is not None and low == 0:
                bound = self._most(x) + self._most(y)
            return self.int_of(f"lt_{name}({c_int(a)}, {c_int(b)})", low, bound)
        if is_float(a) and is_float(b):
            sign = ">" if name == "max" else "<"
            x, y = c_real(a), c_real(b)
            return self.real_of(f"{y} {sign} {x} ? {y} : {x}")
        raise Refused("compares an int and a float")

    def _bound(self, x: Index) -> Index | None:
        try:
            return self._most(x)
        except Refused:
            return None

    def _most(self, x: Index) -> Index:
        return self.frame.most(x)

    def _steps(self, x: Sequence[object]) -> object:
        start, stop, step = x
        if step == 1 and start == 0 and isinstance(stop, Index) and nonnegative(stop):
            return stop
        if type(step) is not int or step == 0 or not (is_int(start) and is_int(stop)):
            raise Refused("has a step that is known only at run time")
        a, b = (start, stop) if step > 0 else (stop, start)
        apart = _index(b) - _index(a)
        if not (self.frame.is_small(_index(a)) and self.frame.is_small(_index(b))):
            raise Refused("counts up to an int that may be large")
        n = abs(step)
        count = f"({c_int(apart)} + {n - 1}) / {n}"
        bound = self._bound(floordiv(apart + (n - 1), n)) if nonnegative(apart) else None
        return self.int_of(f"{c_int(apart)} <= 0 ? 0 : {count}", 0, bound)

    def _binary(self, name: str, a: object, b: object) -> object:
        if name in _COMPARISONS:
            return self._compared(name, a, b)
        if is_bool(a) and is_bool(b) and name in _BITS:
            return self.truth_of(f"({c_truth(a)}) {_BITS[name]} ({c_truth(b)})")
        a, b = (self.whole(x) if is_bool(x) else x for x in (a, b))
        if is_int(a) and is_int(b):
            return self._of_ints(name, a, b)
        x, y = c_real(a), c_real(b)
        match name:
            case "add" | "sub" | "mul":
                sign = {"add": "+", "sub": "-", "mul": "*"}[name]
                return self.real_of(f"{x} {sign} {y}")
            case "truediv":
                return self.real_of(f"lt_real_div({x}, {y}, &fault)")
            case "floordiv" | "mod":
                return self.real_of(f"lt_real_{name}({x}, {y}, &fault)")
            case "pow":
                return self.real_of(f"lt_real_checked(pow({x}, {y}), {x}, {y}, &fault)")
            case _:
                raise Refused("is computed by Python")

    def _of_ints(self, name: str, a: object, b: object) -> object:
        x, y = _index(a), _index(b)
        is_small = self.frame.is_small(x) and self.frame.is_small(y)
        if name in _CHECKED and is_small:
            plain: dict[str, Callable[[Index, Index], Index]] = {
                "add": operator.add, "sub": operator.sub, "mul": operator.mul,
            }  # fmt: skip
            return _plain(plain[name](x, y))
        if name in _CHECKED:
            return self.int_of(f"lt_int_{name}({c_int(a)}, {c_int(b)}, &fault)")
        if name in ("floordiv", "mod"):
            if is_small and y.const is not None and y.const > 0:
                return _plain((floordiv if name == "floordiv" else mod)(x, y))
            low = 0 if nonnegative(x) and nonnegative(y - 1) else None
            bound = None if low is None else self._bound(x if name == "floordiv" else y - 1)
            return self.int_of(f"lt_int_{name}({c_int(a)}, {c_int(b)}, &fault)", low, bound)
        if name == "truediv":
            return self.real_of(f"lt_real_div({c_real(a)}, {c_real(b)}, &fault)")
        if name in _BITS:
            return self.int_of(f"{c_int(a)} {_BITS[name]} {c_int(b)}")
        if name == "pow" and y.const in range(1, 9):
            found = a
            for _ in range(int(y.const or 1) - 1):
                found = self._of_ints("mul", found, a)
            return found
        if name == "lshift" and y.const in range(63):
            return self._of_ints("mul", a, 1 << int(y.const or 0))
        if name == "rshift" and y.const in range(63):
            return self.int_of(f"lt_int_floordiv({c_int(a)}, {1 << int(y.const or 0)}LL, &fault)")
        raise Refused("is computed by Python")

    def _compared(self, name: str, a: object, b: object) -> object:
        sign = _COMPARISONS[name]
        if (is_int(a) or is_bool(a)) and (is_int(b) or is_bool(b)):
            a, b = (self.whole(x) if is_bool(x) else x for x in (a, b))
            known = _decided(name, _index(a) - _index(b))
            return self.truth_of(f"{c_int(a)} {sign} {c_int(b)}") if known is None else known
        for x in (a, b):
            if is_int(x) and not self.frame.is_small(_index(x)):
                raise Refused("compares a large int and a float")
        return self.truth_of(f"{c_real(a)} {sign} {c_real(b)}")

    def _math(self, name: str, x: Sequence[object]) -> object:
        texts = [c_real(self._number(e)) for e in x]
        if name in _KINDS and len(x) == 1:
            return self.truth_of(f"{_KINDS[name]}({texts[0]}) != 0")
        if name in _WHOLE and len(x) == 1:
            return x[0] if is_int(x[0]) else self.int_of(
                f"lt_int_of({_WHOLE[name]}({texts[0]}), &fault)"
            )  # fmt: skip
        if name == "pow" and len(x) == 2:
            return self._binary("pow", Real(texts[0]), Real(texts[1]))
        if name in _LIBM and len(x) == (2 if name in ("atan2", "hypot", "fmod", "copysign") else 1):
            call = f"{_LIBM[name]}({', '.join(texts)})"
            return self.real_of(f"lt_real_checked({call}, {texts[0]}, {texts[-1]}, &fault)")
        raise Refused("is computed by Python")


def _decided(name: str, apart: Index) -> bool | None:
    """Return whether `apart` compares so with 0, None if that is open."""
    above, below = nonnegative(apart - 1), nonnegative(-apart - 1)
    at_least, at_most = nonnegative(apart), nonnegative(-apart)
    match name:
        case "lt":
            return True if below else False if at_least else None
        case "le":
            return True if at_most else False if above else None
        case "gt":
            return True if above else False if at_most else None
        case "ge":
            return True if at_least else False if below else None
        case _:
            if apart.const == 0:
                return name == "eq"
            return (name == "ne") if above or below else None


def _index(x: object) -> Index:
    return x if isinstance(x, Index) else as_index(cast("int", x))


def _plain(x: Index) -> object:
    return x if x.const is None else x.const


def _is_known(x: object) -> bool:
    if isinstance(x, Index):
        return x.const is not None
    if isinstance(x, tuple | list):
        return all(map(_is_known, cast("Sequence[object]", x)))
    plain = (bool, int, float, str, type(None))
    return isinstance(x, plain) or (type(x).__module__ == "torch" and not isinstance(x, Tensor))


def _known(x: object) -> Any:
    return x.const if isinstance(x, Index) else x
