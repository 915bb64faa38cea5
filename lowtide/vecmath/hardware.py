"""Operations that a processor has as one instruction, each with a fallback in plain C.

In: the table below. Out: `Snippet`s fma, sqrt, floor, …; the choice is made by the preprocessor, so
the text cross-compiles. gcc is given its x86 builtins (an asm would hide the operands from its
scheduler and from folding); clang has one builtin for every target. Both fall back to a formula or
a loop over lanes.
Invariant: `fastmin(a, b)` and `fastmax` give b, or NaN, where either is NaN, as vminps does.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.vecmath.snippet import Layout, Snippet, expand, one_float, prototype


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    """One operation: the builtins of gcc and of clang for it, and the fallback's body.

    `x86`: gcc's builtin by vector bytes, as (condition, expression); `clang`: its own, likewise, as
    far as this clang has it: `elementwise_fma` is of clang 16. In expressions `ps` stands for ps or
    pd, and ALL for the mask of all lanes. `lanes`: of clangs without it, which make one instruction
    of the loop.
    """

    head: str
    x86: dict[int, tuple[str, str]]
    clang: tuple[str, str] | None = None
    x86_for_clang: bool = False
    lanes: str = ""
    fallback: str


def _three(name512: str, name: str, feature: str) -> dict[int, tuple[str, str]]:
    return {
        64: ("__AVX512F__", name512),
        32: (feature, name.format("256")),
        16: (feature, name.format("")),
    }


def _rounding(imm: int) -> dict[int, tuple[str, str]]:
    wide = f"__builtin_ia32_rndscaleps_mask(a, {imm}, a, ALL, 4)"
    return {
        64: ("__AVX512F__", wide),
        32: ("__AVX__", f"__builtin_ia32_roundps256(a, {imm})"),
        16: ("__SSE4_1__", f"__builtin_ia32_roundps(a, {imm})"),
    }


def _minmax(op: str) -> dict[int, tuple[str, str]]:
    return {
        64: ("__AVX512F__", f"__builtin_ia32_{op}ps512_mask(a, b, a, ALL, 4)"),
        32: ("__AVX__", f"__builtin_ia32_{op}ps256(a, b)"),
        16: ("__SSE2__", f"__builtin_ia32_{op}ps(a, b)"),
    }


def _avx512(name: str, args: str) -> dict[int, tuple[str, str]]:
    return {
        64: ("__AVX512F__", f"__builtin_ia32_{name}ps512_mask({args}, a, ALL, 4)"),
        32: ("__AVX512VL__", f"__builtin_ia32_{name}ps256_mask({args}, a, ALL)"),
        16: ("__AVX512VL__", f"__builtin_ia32_{name}ps128_mask({args}, a, ALL)"),
    }


def _scale_unless_below() -> dict[int, tuple[str, str]]:
    text = (
        "__builtin_ia32_scalefps{0}_mask(a, n, K(0.0), __builtin_ia32_cmpps{0}_mask(x, low, 5, {1}"
    )
    return {
        64: ("__AVX512F__", text.format(512, "ALL, 4), 4)")),
        32: ("__AVX512VL__", text.format(256, "ALL))")),
        16: ("__AVX512VL__", text.format(128, "ALL))")),
    }


_RINT = """
  F sign = (F)((I)a & KI(SIGN)), big = (F)((I)K(big) | (I)sign);
  F r = (F)((I)(a + big - big) | (I)sign);"""
_RINT_END = "return blend_T((F)((I)a & KI(MAGNITUDE)) < K(big), r, a);"
_HAS_FMA = "defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)"
_ROUND_CLANG = "defined(__SSE4_1__) || defined(__aarch64__)"
_FMA_X86 = _three(
    "__builtin_ia32_vfmaddps512_mask(a, b, c, ALL, 4)",
    "__builtin_ia32_vfmaddps{}(a, b, c)",
    "__FMA__",
)

PRIMITIVES: tuple[Primitive, ...] = (
    Primitive(
        head="F fma_T(F a, F b, F c)",
        x86=_FMA_X86,
        clang=(_HAS_FMA, "__builtin_elementwise_fma(a, b, c)"),
        lanes="for (int i = 0; i < LANES; i++) a[i] = FMA(a[i], b[i], c[i]); return a;",
        fallback="return a * b + c;",
    ),
    Primitive(
        head="F sqrt_T(F a)",
        x86=_three(
            "__builtin_ia32_sqrtps512_mask(a, a, ALL, 4)", "__builtin_ia32_sqrtps{}(a)", "__AVX__"
        ),
        clang=("1", "__builtin_elementwise_sqrt(a)"),
        fallback="F r = a; for (int i = 0; i < LANES; i++) r[i] = SQRT(a[i]); return r;",
    ),
    Primitive(
        head="F floor_T(F a)",
        x86=_rounding(9),
        clang=(_ROUND_CLANG, "__builtin_elementwise_floor(a)"),
        fallback=f"{_RINT}\n"
        f"  r = (F)((I)(r - blend_T(r > a, K(1.0), K(0.0))) | (I)sign);\n  {_RINT_END}",
    ),
    Primitive(
        head="F ceil_T(F a)",
        x86=_rounding(10),
        clang=(_ROUND_CLANG, "__builtin_elementwise_ceil(a)"),
        fallback=f"{_RINT}\n"
        f"  r = (F)((I)(r + blend_T(r < a, K(1.0), K(0.0))) | (I)sign);\n  {_RINT_END}",
    ),
    Primitive(
        head="F round_T(F a)",
        x86=_rounding(8),
        clang=(_ROUND_CLANG, "__builtin_elementwise_roundeven(a)"),
        fallback=f"{_RINT}\n  {_RINT_END}",
    ),
    Primitive(
        head="F trunc_T(F a)",
        x86=_rounding(11),
        clang=(_ROUND_CLANG, "__builtin_elementwise_trunc(a)"),
        fallback=f"{_RINT}\n  F one = (F)((I)K(1.0) | (I)sign);\n"
        f"  r = (F)((I)(r - blend_T(abs_T(r) > abs_T(a), one, K(0.0))) | (I)sign);\n  {_RINT_END}",
    ),
    Primitive(
        head="F fastmin_T(F a, F b)", x86=_minmax("min"), fallback="return blend_T(a < b, a, b);"
    ),
    Primitive(
        head="F fastmax_T(F a, F b)", x86=_minmax("max"), fallback="return blend_T(a > b, a, b);"
    ),
    # a * 2^n for an integral n of at most twice the exponent range; one rounding, also into
    # subnormals
    Primitive(
        head="F scale_T(F a, F n)",
        x86=_avx512("scalef", "a, n"),
        x86_for_clang=True,
        fallback="""I k = (I)(n + K(magic)) - (I)K(magic), h = k >> 1;
  F s = (F)((h + KI(BIAS)) << MANT), t = (F)((k - h + KI(BIAS)) << MANT);
  return a * s * t;""",
    ),
    # a * 2^n, and 0 where x is below low, without the underflow: one in any lane costs an Intel CPU
    # some 150 cycles, and masked scores are -inf
    Primitive(
        head="F scalefrom_T(F a, F n, F x, F low)",
        x86=_scale_unless_below(),
        fallback="""I gone = x < low;
  return blend_T(gone, K(0.0), scale_T(a, blend_T(gone, K(0.0), n)));""",
    ),
    Primitive(
        head="F mantissa_T(F a)",
        x86=_avx512("getmant", "a, 11"),
        x86_for_clang=True,
        fallback="return a;",
    ),
    Primitive(
        head="F exponent_T(F a)",
        x86=_avx512("getexp", "a"),
        x86_for_clang=True,
        fallback="return a;",
    ),
)


def _snippet(primitive: Primitive, dtype: str) -> Snippet:
    suffix = "f" if dtype == "f32" else ""
    body = primitive.fallback.replace("SQRT", f"__builtin_sqrt{suffix}")
    itemsize = int(dtype[1:]) // 8

    def text(layout: Layout) -> str:
        row = primitive.x86.get(layout.lanes * itemsize)
        lines: list[str] = []
        if primitive.clang:
            condition, call = primitive.clang
            has = f"LT_HAS({call.partition('(')[0]})"
            lines += [f"#if ({condition}) && {has}", f"  return {call};"]
        if primitive.lanes and primitive.clang:
            loop = primitive.lanes.replace("LANES", str(layout.lanes))
            loop = loop.replace("FMA", f"__builtin_fma{suffix}")
            lines += [f"#elif defined(__clang__) && ({primitive.clang[0]})", f"  {loop}"]
        if row:
            condition, call = row
            call = call.replace("ALL", hex((1 << layout.lanes) - 1))
            if dtype == "f64":
                call = call.replace("ps", "pd")
            other = "" if primitive.x86_for_clang else " && !defined(__clang__)"
            word = "#elif" if lines else "#if"
            lines += [f"{word} defined({condition}){other}", f"  return {call};"]
        plain = "  " + body.replace("LANES", str(layout.lanes))
        lines += ["#else", plain, "#endif"] if lines else [plain]
        return expand(primitive.head + " {\n" + "\n".join(lines) + "\n}", dtype)

    name = prototype(expand(primitive.head + " {}", dtype)).name
    return Snippet(name=name, text=text)


# without the instruction: f32 through double, whose product is exact; f64 by Dekker's product of
# halves
_FMA_EXACT_F32 = f"""
F fmaexact_T(F a, F b, F c) {{
#if {_HAS_FMA}
  return fma_T(a, b, c);
#else
  for (int i = 0; i < (int)(sizeof(F) / sizeof(S)); i++)
    c[i] = (S)((double)a[i] * (double)b[i] + (double)c[i]);
  return c;
#endif
}}"""
_FMA_EXACT_F64 = f"""
F fmaexact_T(F a, F b, F c) {{
#if {_HAS_FMA}
  return fma_T(a, b, c);
#else
  I large = (abs_T(b) > K(1e299)) | (abs_T(c) > K(1e299));
  F down = blend_T(large, K(8.6736173798840355e-19), K(1.0));
  b *= down; c *= down;
  F ta = a * K(split), tb = b * K(split);
  F ah = ta - (ta - a), bh = tb - (tb - b), al = a - ah, bl = b - bh;
  F p = a * b, e = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
  F s = p + c, v = s - p, t = (p - (s - v)) + (c - v);
  return (s + (t + e)) / down;
#endif
}}"""
_SPLIT_E = """
F split_T(F x, F *e) {
#if SPLIT_CONDITION
  F m = mantissa_T(x);
  *e = exponent_T(x) - exponent_T(m);
  return m;
#else
  I tiny = x < K(min_normal), ok = (x > K(0.0)) & (x < K(inf));
  I bits = (I)blend_T(tiny, x * K(unsubnormal), x);
  I k = (bits - (I)K(0.75)) >> MANT;
  F n = (F)(k + (I)K(magic)) - K(magic) - blend_T(tiny, K(MANT1), K(0.0));
  F special = blend_T(x == K(0.0), K(-inf), blend_T(x == K(inf), x, K(nan)));
  *e = blend_T(ok, n, special);
  return blend_T(ok, (F)(bits - (k << MANT)), K(1.0));
#endif
}"""


def _split(dtype: str) -> Snippet:
    def text(layout: Layout) -> str:
        bytes_ = layout.lanes * int(dtype[1:]) // 8
        feature = {
            64: "defined(__AVX512F__)",
            32: "defined(__AVX512VL__)",
            16: "defined(__AVX512VL__)",
        }
        template = _SPLIT_E.replace("SPLIT_CONDITION", feature.get(bytes_, "0"))
        return expand(template.replace("MANT1", "24.0" if dtype == "f32" else "54.0"), dtype)

    return Snippet(name=f"split_{dtype}", text=text, note="x = m * 2^e, m in [0.75, 1.5)")


SNIPPETS: list[Snippet] = [
    *(_snippet(p, t) for p in PRIMITIVES for t in ("f32", "f64")),
    one_float(_FMA_EXACT_F32, "f32"),
    one_float(_FMA_EXACT_F64, "f64"),
    *(_split(t) for t in ("f32", "f64")),
]
