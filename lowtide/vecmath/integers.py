"""Integer arithmetic with torch's rules: wraps on overflow, Python's // and %, saturated shifts.

In: nothing. Out: `Snippet`s for i64, i32 and u8. Invariant: no lane traps; x // 0 and x % 0 are 0.
Division goes through float64, whose quotient floors right below 2^51; i64 beyond that is divided
lane by lane.
"""

from __future__ import annotations

from lowtide.vecmath.snippet import Snippet, fixed
from lowtide.vecmath.types import SCALARS

_WIDTH = {"i64": 64, "i32": 32, "u8": 8}


def _same_for_all(dtype: str) -> list[Snippet]:
    v, bits, signed = f"{dtype}v", _WIDTH[dtype], dtype[0] == "i"
    u, mask = dtype.replace("i", "u") + "v", dtype.replace("u", "i") + "v"
    scalar = SCALARS[dtype]
    limit = f"(({scalar}){bits - 1} - ({v}){{0}})"
    inside = f"(({u})n < ({u})(({scalar}){bits} - ({v}){{0}}))"
    safe = f"blend_{dtype}(({mask}){inside}, n, {limit})"
    texts = [
        f"{v} minimum_{dtype}({v} a, {v} b) {{ return blend_{dtype}(a < b, a, b); }}",
        f"{v} maximum_{dtype}({v} a, {v} b) {{ return blend_{dtype}(a > b, a, b); }}",
        f"{v} shiftleft_{dtype}({v} a, {v} n) {{\n"
        f"  return ({v})((({u})a << ({u}){safe}) & ({u}){inside});\n}}",
        f"{v} shiftright_{dtype}({v} a, {v} n) {{\n"
        + (
            f"  return a >> {safe};\n}}"
            if signed
            else f"  return (a >> {safe}) & ({v}){inside};\n}}"
        ),
        f"{v} pow_{dtype}({v} a, {v} n) {{\n"
        f"  {u} r = ({u}){{0}} + 1, b = ({u})a;\n"
        f"  {u} k = ({u})n"
        + (f" & ({u})(n >= 0);\n" if signed else ";\n")
        + f"  for (int i = 0; i < {bits} && any_{dtype}(({mask})(k != 0)); i++) {{\n"
        f"    r *= ({u})blend_{dtype}(({mask})((k & 1) != 0), ({v})b, ({v})(({u}){{0}} + 1));\n"
        f"    b *= b; k >>= 1;\n  }}\n"
        + (
            f"  {mask} parity = (n & 1) != 0;\n"
            f"  {v} below = (a & (a == 1)) | (blend_{dtype}(parity, a, -a) & (a == -1));\n"
            f"  return blend_{dtype}(n < 0, below, ({v})r);\n}}"
            if signed
            else "  return r;\n}"
        ),
        f"int any_{dtype}({mask} m) {{ return "
        + {
            "i64": "anylane_i64(m)",
            "i32": "hor_bool(m)",
            "u8": "hor_bool(__builtin_convertvector(m, i32v))",
        }[dtype]
        + "; }",
    ]
    if signed:
        texts.append(f"{v} abs_{dtype}({v} a) {{ return blend_{dtype}(a < 0, ({v})-({u})a, a); }}")
    return [fixed(t, splits=not t.startswith("int any")) for t in texts]


_DIVISION = (
    """
i32v floordiv_i32(i32v a, i32v b) {
  i32v usual = (b != 0) & (b != -1);
  i32v d = blend_i32(usual, b, (i32v){0} + 1);
  f64v q = floor_f64(__builtin_convertvector(a, f64v) / __builtin_convertvector(d, f64v));
  i32v wrapped = (i32v)-(u32v)a;
  return blend_i32(usual, __builtin_convertvector(q, i32v), wrapped & (b == -1));
}""",
    """
i32v mod_i32(i32v a, i32v b) {
  return (i32v)((u32v)a - (u32v)floordiv_i32(a, b) * (u32v)b) & (b != 0);
}""",
    """
u8v floordiv_u8(u8v a, u8v b) {
  i32v d = __builtin_convertvector(b, i32v), n = __builtin_convertvector(a, i32v);
  f32v q = __builtin_convertvector(n, f32v)
    / __builtin_convertvector(blend_i32(d == 0, d - (d == 0), d), f32v);
  return __builtin_convertvector(__builtin_convertvector(q, i32v) & (d != 0), u8v);
}""",
    "u8v mod_u8(u8v a, u8v b) { return (u8v)(a - floordiv_u8(a, b) * b) & (u8v)(b != 0); }",
    """
int64_t floordiv_lane(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return (int64_t)-(uint64_t)a;
  return a / b - ((a % b != 0) & ((a ^ b) < 0));
}""",
    """
i64v floordiv_i64(i64v a, i64v b) {
  const int64_t limit = 1ll << 50;
  i64v far = (i64v)((u64v)(a + limit) >= (u64v)(2 * limit - (i64v){0}));
  far |= (i64v)((u64v)(b + limit) >= (u64v)(2 * limit - (i64v){0}));
  if (__builtin_expect(anylane_i64(far), 0)) {
    union { i64v v; int64_t s[sizeof(i64v) / 8]; } x = {a}, y = {b};
    for (int i = 0; i < (int)(sizeof(i64v) / 8); i++) x.s[i] = floordiv_lane(x.s[i], y.s[i]);
    return x.v;
  }
  f64v magic = 6755399441055744.0 - (f64v){0};
  f64v n = (f64v)(a + (i64v)magic) - magic, d = (f64v)(b + (i64v)magic) - magic;
  f64v q = floor_f64(n / blend_f64(b == 0, 1.0 - (f64v){0}, d));
  return ((i64v)(q + magic) - (i64v)magic) & (b != 0);
}""",
    """
i64v mod_i64(i64v a, i64v b) {
  return (i64v)((u64v)a - (u64v)floordiv_i64(a, b) * (u64v)b) & (b != 0);
}""",
)

SNIPPETS: list[Snippet] = [
    *(s for dtype in _WIDTH for s in _same_for_all(dtype)),
    *(fixed(t, splits="floordiv_lane(int64_t a" not in t) for t in _DIVISION),
]
