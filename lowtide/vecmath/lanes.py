"""Operations across or between lanes: splat, select, tests of masks, folds to a scalar.

In: nothing. Out: `Snippet`s blend, select, any, hsum, ….
Invariant: a mask has lanes 0 or -1; `select_…` takes the kernel's mask (i32v), `blend_…` one as
wide as the values.

    hsum_f32, 4 lanes:  h2 = {a0 + a2, a1 + a3};  return h2[0] + h2[1];
"""

from __future__ import annotations

from lowtide.vecmath.snippet import Layout, Snippet, fixed
from lowtide.vecmath.types import SCALARS

_COMPUTED = ("f32", "f64", "i32", "i64", "u8")
_MASK = {"f32": "i32v", "f64": "i64v", "i32": "i32v", "i64": "i64v", "u8": "i8v"}


def _blend(dtype: str) -> Snippet:
    mask, vector = _MASK[dtype], f"{dtype}v"
    return fixed(
        f"{vector} blend_{dtype}({mask} m, {vector} a, {vector} b) {{\n"
        f"  return ({vector})((m & ({mask})a) | (~m & ({mask})b));\n}}"
    )


def _select(dtype: str) -> Snippet:
    mask, vector = _MASK[dtype], f"{dtype}v"
    widened = "m" if mask == "i32v" else f"__builtin_convertvector(m, {mask})"
    return fixed(
        f"{vector} select_{dtype}(i32v m, {vector} a, {vector} b) {{\n"
        f"  return blend_{dtype}({widened}, a, b);\n}}"
    )


def _splat(dtype: str) -> Snippet:
    vector = f"{dtype}v"
    return fixed(f"{vector} splat_{dtype}({SCALARS[dtype]} a) {{ return a - ({vector}){{0}}; }}")


def _shared_divisor(dtype: str) -> list[Snippet]:
    """Return the quotient by a divisor that all lanes share: a product where that has the same
    bits."""
    vector, scalar = f"{dtype}v", SCALARS[dtype]
    bits, (mantissa, low, high) = dtype.replace("f", "u"), _NORMAL[dtype]
    return [
        fixed(
            f"int ispower_{dtype}({scalar} d) {{\n"
            f"  union {{ {scalar} d; {SCALARS[bits]} u; }} x = {{d}};\n"
            f"  d = d < 0 ? -d : d;\n"
            f"  return !(x.u & {mantissa}) && d >= {low} && d <= {high};\n}}",
            splits=False,
        ),
        fixed(
            f"{vector} quotient_{dtype}({vector} a, {vector} d, {vector} one_over,\n"
            f"                       int ispower) {{\n"
            f"  if (ispower) return a * one_over;\n  return a / d;\n}}",
            splits=False,
        ),
    ]


# the bits behind the point; powers of two from which to which 1 / d is one, and no subnormal
_NORMAL = {
    "f32": ("0x7fffffu", "0x1p-126f", "0x1p126f"),
    "f64": ("0xfffffffffffffull", "0x1p-1022", "0x1p1022"),
}


def halves(value: str, lanes: int, fold: str, result: str) -> str:
    """Statements that fold vector `value` in halves.

    `fold`: of two vectors {x} and {y}; `result`: of the last two scalars.
    """
    lines: list[str] = []
    n = lanes // 2
    while n >= 2:
        low, high = (", ".join(map(str, range(k, k + n))) for k in (0, n))
        lines.append(f"  __auto_type p{n} = __builtin_shufflevector({value}, {value}, {low});")
        lines.append(f"  __auto_type q{n} = __builtin_shufflevector({value}, {value}, {high});")
        lines.append(f"  __auto_type h{n} = {fold.format(x=f'p{n}', y=f'q{n}')};")
        value = f"h{n}"
        n //= 2
    lines.append(f"  return {result.format(x=f'{value}[0]', y=f'{value}[1]')};")
    return "\n".join(lines)


def _chosen(condition: str) -> str:
    """Return a vector expression {x} where `condition` else {y}, for any vector type."""
    mask = f"({condition})"
    integer = f"__typeof__{mask}"
    return f"(__typeof__({{x}}))(({mask} & ({integer}){{x}}) | (~{mask} & ({integer}){{y}}))"


# name: fold of vectors, fold of the last two scalars, dtypes
_FOLDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "hsum": ("{x} + {y}", "{x} + {y}", _COMPUTED),
    "hprod": ("{x} * {y}", "{x} * {y}", _COMPUTED),
    "hfastmin": (_chosen("{x} < {y}"), "{x} < {y} ? {x} : {y}", ("f32", "f64")),
    "hfastmax": (_chosen("{x} > {y}"), "{x} > {y} ? {x} : {y}", ("f32", "f64")),
    "hmin": (
        _chosen("({x} < {y}) | ({x} != {x})"),
        "{x} < {y} || {x} != {x} ? {x} : {y}",
        ("f32", "f64"),
    ),
    "hmax": (
        _chosen("({x} > {y}) | ({x} != {x})"),
        "{x} > {y} || {x} != {x} ? {x} : {y}",
        ("f32", "f64"),
    ),
}
_INT_FOLDS = {
    "hmin": (_chosen("{x} < {y}"), "{x} < {y} ? {x} : {y}", ("i32", "i64", "u8")),
    "hmax": (_chosen("{x} > {y}"), "{x} > {y} ? {x} : {y}", ("i32", "i64", "u8")),
}


def _fold(name: str, dtype: str, vectors: str, scalars: str) -> Snippet:
    scalar, unsigned = SCALARS[dtype], dtype.replace("i", "u")
    value = f"({unsigned}v)a" if name in ("hsum", "hprod") and dtype[0] == "i" else "a"

    def text(layout: Layout) -> str:
        body = halves("v", layout.lanes, vectors, scalars)
        return f"{scalar} {name}_{dtype}({dtype}v a) {{\n  __auto_type v = {value};\n{body}\n}}"

    return Snippet(name=f"{name}_{dtype}", text=text, splits=False)


def _test_mask(name: str, operator: str, vector: str) -> Snippet:
    """Return `any` and `all` of a mask; one ptest or a fold by | or &."""
    clang = {"|": "__builtin_reduce_or", "&": "__builtin_reduce_and"}[operator]
    last = "({x} " + operator + " {y}) != 0"
    itemsize = int(vector[1:-1]) // 8
    letter = "d" if itemsize == 4 else "q"

    def text(layout: Layout) -> str:
        every = hex((1 << layout.lanes) - 1)
        test = f"__builtin_ia32_ptestm{letter}512(m, m, {every})"
        lines = [f"#if LT_HAS({clang})", f"  return {clang}(m) != 0;"]
        if layout.lanes * itemsize == 64:
            wanted = f"({test} & {every}) == {every}" if operator == "&" else f"{test} != 0"
            lines += ["#elif defined(__AVX512F__)", f"  return {wanted};"]
        lines += ["#else", halves("m", layout.lanes, "{x} " + operator + " {y}", last), "#endif"]
        return f"int {name}({vector} m) {{\n" + "\n".join(lines) + "\n}"

    return Snippet(name=name, text=text, splits=False)


# comparison: C operator and x86 predicate; ordered and quiet, `ne` unordered, as C has them
COMPARISONS = {"lt": ("<", 17), "le": ("<=", 18), "gt": (">", 30), "ge": (">=", 29)}


def _count(name: str, operator: str, predicate: int) -> Snippet:
    """acc + 1 in the lanes where the comparison holds; on AVX-512 one masked addition."""
    head = f"i32v count_{name}_f32(i32v acc, f32v a, f32v b) {{"

    def text(layout: Layout) -> str:
        plain = f"  return acc - (a {operator} b);"
        if layout.lanes != 16:
            return f"{head}\n{plain}\n}}"
        mask = f"__builtin_ia32_cmpps512_mask(a, b, {predicate}, (unsigned short)-1, 4)"
        one = f"__builtin_ia32_paddd512_mask(acc, (i32v){{0}} + 1, acc, {mask})"
        chosen = f"#if defined(__AVX512F__) && !defined(__clang__)\n  return (i32v){one};"
        return f"{head}\n{chosen}\n#else\n{plain}\n#endif\n}}"

    return Snippet(name=f"count_{name}_f32", text=text, splits=False)


SNIPPETS: list[Snippet] = [
    *(_count(n, *row) for n, row in COMPARISONS.items()),
    *(s for t in _NORMAL for s in _shared_divisor(t)),
    *map(_blend, _COMPUTED),
    *map(_select, _COMPUTED),
    *map(_splat, _COMPUTED),
    *(_fold(n, t, v, s) for n, (v, s, dtypes) in _FOLDS.items() for t in dtypes),
    *(_fold(n, t, v, s) for n, (v, s, dtypes) in _INT_FOLDS.items() for t in dtypes),
    _test_mask("hor_bool", "|", "i32v"),
    _test_mask("hand_bool", "&", "i32v"),
    _test_mask("anylane_i64", "|", "i64v"),
    fixed("int anylane_f32(i32v m) { return hor_bool(m); }", splits=False),
    fixed("int anylane_f64(i64v m) { return anylane_i64(m); }", splits=False),
    fixed(
        "i32v select_bool(i32v m, i32v a, i32v b) { return (m & a) | (~m & b); }",
    ),
]
