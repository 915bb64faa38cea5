"""Casts between the dtypes, as torch's `.to()` does on x86.

In: nothing. Out: `Snippet`s `cast_<from>_<to>`; bool is a mask (i32v), bf16 and f16 are bit
patterns (u16v).
Invariant: no trap; a NaN stays a NaN; 16-bit formats round to nearest, ties to even, with
subnormals; f64 reaches them through f32, as in torch. A float outside the integer's range gives
some integer.
"""

from __future__ import annotations

from lowtide.vecmath.snippet import Layout, Snippet, fixed

_ONE_STEP = [
    (a, b) for a in ("f64", "f32", "i64", "i32", "u8") for b in ("f64", "f32", "i64", "i32", "u8")
]
_VIA_I32 = {("f32", "u8"), ("f64", "u8"), ("u8", "f32"), ("u8", "f64")}


def _numeric(a: str, b: str) -> Snippet:
    value = "a"
    if (a, b) in _VIA_I32:
        value = "__builtin_convertvector(a, i32v)"
    if a == b:
        body = "a"
    elif (a, b) in _VIA_I32 and b == "u8":
        body = f"__builtin_convertvector({value}, u8v)"
    else:
        body = f"__builtin_convertvector({value}, {b}v)"
    return fixed(f"{b}v cast_{a}_{b}({a}v a) {{ return {body}; }}")


def _to_bool(a: str) -> Snippet:
    mask = {"f32": "a != 0", "i32": "a != 0"}.get(a, "__builtin_convertvector(a != 0, i32v)")
    return fixed(f"i32v cast_{a}_bool({a}v a) {{ return {mask}; }}")


_FROM_BOOL = (
    "f32v cast_bool_f32(i32v m) { return (f32v)(m & (i32v)(1.0f - (f32v){0})); }",
    "f64v cast_bool_f64(i32v m) { return __builtin_convertvector(-m, f64v); }",
    "i32v cast_bool_i32(i32v m) { return -m; }",
    "i64v cast_bool_i64(i32v m) { return __builtin_convertvector(-m, i64v); }",
    "u8v cast_bool_u8(i32v m) { return __builtin_convertvector(-m, u8v); }",
    "i32v cast_bool_bool(i32v m) { return m; }",
)
_BF16 = (
    "f32v cast_bf16_f32(u16v a) { return (f32v)(__builtin_convertvector(a, u32v) << 16); }",
    """
u16v cast_f32_bf16(f32v a) {
  u32v u = (u32v)a, r = (u + 0x7fff + ((u >> 16) & 1)) >> 16, quiet = (u >> 16) | 0x40;
  return __builtin_convertvector((u32v)blend_i32(a != a, (i32v)quiet, (i32v)r), u16v);
}""",
)
_BF16_ROUNDED = """
f32v round_f32_bf16(f32v a) {
  u32v u = (u32v)a, r = u + 0x7fff + ((u >> 16) & 1);
  return (f32v)(blend_i32(a != a, (i32v)(u | 0x400000), (i32v)r) & ~0xffff);
}"""
_F16_TO_F32 = """
  u32v u = __builtin_convertvector(a, u32v), sign = (u & 0x8000) << 16, e = u & 0x7fff;
  f32v small = __builtin_convertvector((i32v)e, f32v) * 5.9604644775390625e-8f;
  i32v bits = (i32v)((e << 13) + 0x38000000), top = (i32v)(e >= 0x7c00);
  bits += top & 0x38000000;
  bits |= (i32v)(e > 0x7c00) & 0x400000;
  return (f32v)(blend_i32((i32v)(e < 0x400), (i32v)small, bits) | (i32v)sign);"""
# a subnormal half is rounded by adding 0.5, whose last bit is 2^-24
_F32_TO_F16 = """
  u32v u = (u32v)a, sign = (u >> 16) & 0x8000, e = u & 0x7fffffff;
  u32v tiny = (u32v)((f32v)e + 0.5f) - 0x3f000000;
  u32v usual = (e - 0x38000000 + 0xfff + ((e >> 13) & 1)) >> 13,
    quiet = 0x7e00 | ((e >> 13) & 0x3ff);
  i32v r = blend_i32((i32v)(e < 0x38800000), (i32v)tiny, (i32v)usual);
  r = blend_i32((i32v)(e >= 0x477ff000), 0x7c00 - (i32v){0}, r);
  r = blend_i32((i32v)(e > 0x7f800000), (i32v)quiet, r);
  return __builtin_convertvector((u32v)r | sign, u16v);"""
# gcc's builtins by lanes: (condition, widening, narrowing); clang converts vectors of _Float16
# itself
_HALF_X86 = {
    16: (
        "__AVX512F__",
        "__builtin_ia32_vcvtph2ps512_mask((i16v)a, (f32v){0}, 0xffff, 4)",
        "(u16v)__builtin_ia32_vcvtps2ph512_mask(a, 0, (i16v){0}, 0xffff)",
    ),
    8: (
        "__F16C__",
        "__builtin_ia32_vcvtph2ps256((i16v)a)",
        "(u16v)__builtin_ia32_vcvtps2ph256(a, 0)",
    ),
}


def _half(name: str, head: str, clang: str, generic: str, column: int) -> Snippet:
    def text(layout: Layout) -> str:
        lines = [
            f"{head} {{",
            "#if defined(__clang__) && defined(__FLT16_MANT_DIG__)"  # not clang 14 for x86
            " && (defined(__F16C__) || defined(__aarch64__))",
            f"  typedef _Float16 half __attribute__((vector_size({2 * layout.lanes})));",
            f"  return {clang};",
        ]
        if row := _HALF_X86.get(layout.lanes):
            lines += [f"#elif defined({row[0]}) && !defined(__clang__)", f"  return {row[column]};"]
        return "\n".join([*lines, "#else" + generic, "#endif", "}"])

    return Snippet(name=name, text=text)


_WIDEN = "__builtin_convertvector((half)a, f32v)"
_NARROW = "(u16v)__builtin_convertvector(a, half)"
_F16 = (
    _half("cast_f16_f32", "f32v cast_f16_f32(u16v a)", _WIDEN, _F16_TO_F32, 1),
    _half("cast_f32_f16", "u16v cast_f32_f16(f32v a)", _NARROW, _F32_TO_F16, 2),
)


def _through_f32(half: str) -> list[Snippet]:
    texts: list[str] = []
    for a in ("f64", "i64", "i32", "u8", "bool"):
        compute = "i32v" if a == "bool" else f"{a}v"
        texts.append(
            f"u16v cast_{a}_{half}({compute} a) {{ return cast_f32_{half}(cast_{a}_f32(a)); }}"
        )
        texts.append(
            f"{compute} cast_{half}_{a}(u16v a) {{ return cast_f32_{a}(cast_{half}_f32(a)); }}"
        )
    return [fixed(t) for t in texts]


SNIPPETS: list[Snippet] = [
    *(_numeric(a, b) for a, b in _ONE_STEP),
    *map(_to_bool, ("f64", "f32", "i64", "i32", "u8")),
    *map(fixed, (*_FROM_BOOL, *_BF16, _BF16_ROUNDED)),
    *_F16,
    *_through_f32("bf16"),
    *_through_f32("f16"),
]
