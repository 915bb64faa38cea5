"""exp, log, sin, … as templates for f32 and f64, and the few that differ between the two.

In: the table of coefficients. Out: `Snippet`s `exp_f32`, `exp_f64`, ….
Invariant: NaN gives NaN, infinities and zeros behave as in C99, subnormals are kept, no lane traps.
Methods: Cody and Waite's reduction with two or three constants; Payne and Hanek's for huge angles;
error-free products by fma; log by [0.75, 1.5) * 2^e, so that log is accurate near 1; derived
functions through expm1 and log1p.
"""

from __future__ import annotations

from lowtide.vecmath.snippet import Snippet, fixed, for_floats, one_float

_SIMPLE = (
    "F abs_T(F a) { return (F)((I)a & KI(MAGNITUDE)); }",
    "F copysign_T(F a, F b) { return (F)(((I)a & KI(MAGNITUDE)) | ((I)b & KI(SIGN))); }",
    "F rsqrt_T(F a) { return K(1.0) / sqrt_T(a); }",
    # of equal operands, such as zeros of either sign, a: clamp(x, 0, 1) keeps a negative zero
    "F minimum_T(F a, F b) { return blend_T(b != b, b, fastmin_T(b, a)); }",
    "F maximum_T(F a, F b) { return blend_T(b != b, b, fastmax_T(b, a)); }",
)

_EXP = (
    # 2^n * p = e^x, p in [0.7, 1.42]; |x| at most a few thousand
    """
F expcore_T(F x, F *n) {
  F k = fma_T(x, K(log2e), K(magic)) - K(magic);
  F r = fma_T(k, K(-ln2lo), fma_T(k, K(-ln2hi), x));
  *n = k;
  return fma_T(fma_T(POLY(exp, r), r, K(1.0)), r, K(1.0));
}""",
    """
F exp_T(F x) {
  F n, p = expcore_T(fastmin_T(K(exp_high), x), &n);
  return scalefrom_T(p, n, x, K(exp_low));
}""",
    """
F exp2_T(F x) {
  F y = fastmin_T(K(exp2_high), x);
  F n = (y + K(magic)) - K(magic), r = y - n;
  return scalefrom_T(fma_T(POLY(exp2, r), r, K(1.0)), n, x, K(exp2_low));
}""",
    # (e^x - 1) / 2, without overflow; x within the exponent range
    """
F halfexpm1_T(F x) {
  F t = fma_T(x, K(log2e), K(magic)), n = t - K(magic);
  F r = fma_T(n, K(-ln2lo), fma_T(n, K(-ln2hi), x));
  F s = (F)(((I)t + KI(BIAS - 1)) << MANT);
  F p = fma_T(POLY(exp, r), r * r, r);
  return fma_T(s, p, s - K(0.5));
}""",
    """
F expm1_T(F x) {
  F h = halfexpm1_T(fastmin_T(K(exp_high), fastmax_T(K(expm1_low), x)));
  return blend_T(abs_T(x) < K(tiny), x, h + h);
}""",
    """
F tanh_T(F x) {
  F h = halfexpm1_T(fastmin_T(K(tanh_limit), abs_T(x + x)));
  return (F)((I)(h / (h + K(1.0))) | ((I)x & KI(SIGN)));
}""",
    """
F sigmoid_T(F x) {
  F n, p = expcore_T(fastmin_T(K(exp_high), fastmax_T(K(lost_low), -x)), &n);
  return K(1.0) / (scale_T(p, n) + K(1.0));
}""",
    """
F sinh_T(F x) {
  F n, a = abs_T(x), z = a * a, p = expcore_T(fastmin_T(K(sinh_high), a), &n);
  F h = scale_T(p, n - K(1.0)), small = fma_T(a * z, POLY(sinh, z), a);
  return copysign_T(blend_T(a < K(1.0), small, h - K(0.25) / h), x);
}""",
    """
F cosh_T(F x) {
  F n, p = expcore_T(fastmin_T(K(sinh_high), abs_T(x)), &n), h = scale_T(p, n - K(1.0));
  return h + K(0.25) / h;
}""",
)

# logtail: log1p(f) = f - f*f/2 + logtail(f)
_LOGTAIL_F32 = "F logtail_T(F f) { return f * f * f * POLY(log, f); }"
_LOGTAIL_F64 = """
F logtail_T(F f) {
  F s = f / (K(2.0) + f), z = s * s;
  return s * fma_T(z, POLY(log, z), K(0.5) * f * f);
}"""
_LOG = (
    # log(1 + f) + e * log(2)
    """
F logof_T(F f, F e) {
  F low = fma_T(f * f, K(-0.5), fma_T(e, K(ln2lo), logtail_T(f)));
  return fma_T(e, K(ln2hi), f + low);
}""",
    "F log_T(F x) { F e, m = split_T(x, &e); return logof_T(m - K(1.0), e); }",
    """
F log2_T(F x) {
  F e, f = split_T(x, &e) - K(1.0), low = fma_T(f * f, K(-0.5), logtail_T(f));
  return fma_T(f, K(log2e), e) + fma_T(low, K(log2e), f * K(log2e_lo));
}""",
    """
F log10_T(F x) {
  F e, f = split_T(x, &e) - K(1.0), low = fma_T(f * f, K(-0.5), logtail_T(f));
  F t = fma_T(low, K(log10e), fma_T(f, K(log10e_lo), e * K(lg2lo)));
  return fma_T(f, K(log10e), e * K(lg2hi)) + t;
}""",
    # u = 1 + x loses c, which is put back where log1p is nearly linear
    """
F log1p_T(F x) {
  F e, u = K(1.0) + x, v = u - K(1.0), c = (x - v) + (K(1.0) - (u - v)), m = split_T(u, &e);
  I ok = (u > K(0.0)) & (u < K(inf));
  F zero = K(0.0), f = (m - K(1.0)) + scale_T(blend_T(ok, c, zero), blend_T(ok, -e, zero));
  return blend_T(abs_T(x) < K(tiny), x, logof_T(f, e));
}""",
    """
F asinh_T(F x) {
  F a = abs_T(x), z = a * a;
  I big = a > K(square_limit);
  F u = blend_T(big, a, a + z / (K(1.0) + sqrt_T(K(1.0) + z)));
  return copysign_T(log1p_T(u) + blend_T(big, K(ln2), K(0.0)), x);
}""",
    """
F acosh_T(F x) {
  F t = x - K(1.0);
  I big = x > K(square_limit);
  F u = blend_T(big, x, t + sqrt_T(fma_T(t, t, t + t)));
  u = blend_T(x < K(1.0), K(nan), u);
  return log1p_T(u) + blend_T(big, K(ln2), K(0.0));
}""",
    """
F atanh_T(F x) {
  F a = abs_T(x), r = K(0.5) * log1p_T((a + a) / (K(1.0) - a));
  return copysign_T(r, x);
}""",
)

# 2/pi in binary, 64 bits a word, after one word of zeros
_TWO_OVER_PI = (
    "0, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561, "
    "0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484, "
    "0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f, "
    "0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d, 0x7527bac7ebe5f17b, "
    "0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d"
)
# x = m * 2^p; the 192 bits of 2/pi that matter mod 4, times m: 2 bits of quadrant, 190 of fraction
_REDUCE_LANE = f"""
double reduce_lane(double x, int64_t *quadrant) {{
  static const uint64_t table[] = {{{_TWO_OVER_PI}}};
  union {{ double f; uint64_t u; }} bits = {{x}}, scale;
  int exponent = (int)(bits.u >> 52) & 2047;
  *quadrant = 0;
  if (exponent == 2047) return x - x;
  uint64_t m = (bits.u & 0xfffffffffffffull) | 0x10000000000000ull;
  int start = exponent - 1075 - 2 + 64, word = start >> 6, shift = start & 63;
  uint64_t w[3];
  for (int i = 0; i < 3; i++)
    w[i] = table[word + i] << shift | table[word + i + 1] >> 1 >> (63 - shift);
  unsigned __int128 low = (unsigned __int128)w[2] * m;
  unsigned __int128 mid = (unsigned __int128)w[1] * m + (uint64_t)(low >> 64);
  uint64_t high = w[0] * m + (uint64_t)(mid >> 64);
  uint64_t f = high << 2 | (uint64_t)mid >> 62, g = (uint64_t)mid << 2 | (uint64_t)low >> 62;
  int64_t q = (int64_t)((high >> 62) + (f >> 63)), negative = (int64_t)bits.u < 0;
  if (f >> 63) f = ~f + (g == 0), g = -g, negative = !negative;
  int zeros = f ? __builtin_clzll(f) : g ? 64 + __builtin_clzll(g) : 0;
  if (zeros >= 64) f = g, g = 0, zeros -= 64, exponent = 64;
  else exponent = 0;
  f = zeros ? f << zeros | g >> (64 - zeros) : f;
  exponent += zeros;
  f = (uint64_t)((unsigned __int128)f * 0xc90fdaa22168c235ull >> 65);
  scale.u = (uint64_t)(1023 - 62 - exponent) << 52;
  double r = (double)(int64_t)f * scale.f;
  *quadrant = (int64_t)bits.u < 0 ? -q : q;
  return negative ? -r : r;
}}"""
_TRIG = (
    # x = quadrant * pi/2 + r, |r| <= 0.8
    """
F reduce_T(F x, I *quadrant) {
  F t = fma_T(x, K(two_over_pi), K(magic)), n = t - K(magic);
  F r = fmaexact_T(n, K(-pio2b), fmaexact_T(n, K(-pio2a), x));
  *quadrant = (I)t;
  r = fma_T(n, K(-pio2c), r);
  I huge = ~(abs_T(x) <= K(trig_limit));
  if (__builtin_expect(anylane_T(huge), 0)) {
    union { F v; S s[sizeof(F) / sizeof(S)]; } xs = {x}, rs = {r};
    union { I v; SI s[sizeof(F) / sizeof(S)]; } qs = {*quadrant}, hs = {huge};
    for (int i = 0; i < (int)(sizeof(F) / sizeof(S)); i++) {
      int64_t q;
      if (hs.s[i]) rs.s[i] = (S)reduce_lane((double)xs.s[i], &q), qs.s[i] = (SI)q;
    }
    r = rs.v; *quadrant = qs.v;
  }
  return r;
}""",
    """
F sinpoly_T(F r) { F z = r * r; return fma_T(r * z, POLY(sin, z), r); }""",
    """
F cospoly_T(F r) {
  F z = r * r;
  return fma_T(z * z, POLY(cos, z), fma_T(z, K(-0.5), K(1.0)));
}""",
    """
F quarter_T(F r, I q) {
  F y = blend_T((q & KI(1)) != KI(0), cospoly_T(r), sinpoly_T(r));
  return (F)((I)y ^ ((q & KI(2)) << (BITS - 2)));
}""",
    "F sin_T(F x) { I q; F r = reduce_T(x, &q); return blend_T(x == K(0.0), x, quarter_T(r, q)); }",
    "F cos_T(F x) { I q; F r = reduce_T(x, &q); return quarter_T(r, q + KI(1)); }",
    """
F tan_T(F x) {
  I q;
  F r = reduce_T(x, &q), s = sinpoly_T(r), c = cospoly_T(r);
  I odd = (q & KI(1)) != KI(0);
  F y = blend_T(odd, c, s) / blend_T(odd, s, c);
  return blend_T(x == K(0.0), x, (F)((I)y ^ (odd & KI(SIGN))));
}""",
)
_ARC = (
    # asin of s, and of the complement where |x| > 0.5: asin(x) = pi/2 - 2 asin(sqrt((1 - x)/2))
    """
F asincore_T(F a, I big) {
  F z = blend_T(big, (K(1.0) - a) * K(0.5), a * a), s = blend_T(big, sqrt_T(z), a);
  return fma_T(s * z, POLY(asin, z), s);
}""",
    """
F asin_T(F x) {
  F a = abs_T(x);
  I big = a > K(0.5);
  F y = asincore_T(a, big);
  return copysign_T(blend_T(big, K(pio2) - (y + y - K(pio2_lo)), y), x);
}""",
    """
F acos_T(F x) {
  F a = abs_T(x);
  I big = a > K(0.5);
  F y = asincore_T(a, big), yy = y + y;
  F far = blend_T(x < K(0.0), K(pi) - (yy - K(pi_lo)), yy);
  return blend_T(big, far, K(pio2) - (blend_T(x < K(0.0), -y, y) - K(pio2_lo)));
}""",
    # a >= 0, folded to |t| <= tan(pi/8)
    """
F atancore_T(F a) {
  I far = a > K(2.414213562373095), mid = a > K(0.4142135623730950);
  F t = blend_T(far, K(-1.0), blend_T(mid, a - K(1.0), a));
  t = t / blend_T(far, a, blend_T(mid, a + K(1.0), K(1.0)));
  F z = t * t, y = fma_T(t * z, POLY(atan, z), t);
  F base = blend_T(far, K(pio2), blend_T(mid, K(pio4), K(0.0)));
  F low = blend_T(far, K(pio2_lo), blend_T(mid, K(pio4_lo), K(0.0)));
  return base + (y + low);
}""",
    "F atan_T(F x) { return copysign_T(atancore_T(abs_T(x)), x); }",
    """
F atan2_T(F y, F x) {
  F ay = abs_T(y), ax = abs_T(x);
  I steep = ay > ax, left = (I)x < KI(0);
  F low = blend_T(steep, ax, ay), high = blend_T(steep, ay, ax);
  F q = blend_T(low == high, blend_T(high == K(0.0), high, K(1.0)), low / high);
  F r = atancore_T(q);
  r = blend_T(steep, K(pio2) - (r - K(pio2_lo)), r);
  r = blend_T(left, K(pi) - (r - K(pi_lo)), r);
  return copysign_T(blend_T((x != x) | (y != y), x + y, r), y);
}""",
)
_ERF = (
    # a >= 0: e^(-a^2) g(t)/(1 + 2a); a^2 = h + l
    """
F erfccore_T(F x) {
  F a = fastmin_T(K(erfc_limit), x), t = (a - K(2.0)) / (a + K(2.0)), n;
  F h = a * a, l = fmaexact_T(a, a, -h), p = expcore_T(-h, &n);
  F y = p * (POLY(erfc, t) / fma_T(a, K(2.0), K(1.0)));
  return scale_T(fma_T(y, -l, y), n);
}""",
    """
F erfc_T(F x) {
  F a = abs_T(x), z = x * x, y = erfccore_T(a), near = K(1.0) - fma_T(x, POLY(erf, z), x);
  return blend_T(a < K(0.5), near, blend_T(x < K(0.0), K(2.0) - y, y));
}""",
)
# f32: 1 - e^(-q(a)) with a polynomial q; cheaper than through erfc
_ERF_F32 = """
F erf_T(F x) {
  F a = abs_T(x), z = a * a, n, b = fastmin_T(K(3.95), fastmax_T(K(0.89), a));
  F small = fma_T(a, POLY(erf, z), a), p = expcore_T(-POLY(erftail, b), &n);
  return copysign_T(blend_T(a > K(0.9), K(1.0) - scale_T(p, n), small), x);
}"""
_ERF_F64 = """
F erf_T(F x) {
  F a = abs_T(x), z = a * a, small = fma_T(a, POLY(erf, z), a);
  return copysign_T(blend_T(a > K(1.0), K(1.0) - erfccore_T(a), small), x);
}"""

_POW = (
    # C99's special cases around |x|^y
    """
F pow_T(F x, F y) {
  F a = abs_T(x), h = y * K(0.5), zero = K(0.0), one = K(1.0), r = powcore_T(a, y);
  I whole = trunc_T(y) == y, odd = whole & (trunc_T(h) != h), unit = a == one;
  r = blend_T((y == zero) | (unit & (y == y)), one, r);
  r = (F)((I)r ^ (odd & ((I)x & KI(SIGN))));
  r = blend_T((x < zero) & (a < K(inf)) & ~whole & (y == y), K(nan), r);
  return blend_T(x == one, one, r);
}""",
    # a / b in pieces of MANT bits; every fma is exact, the first is nearly always the last
    """
F fmod_T(F x, F y) {
  F a = abs_T(x), b = abs_T(y), zero = K(0.0), one = K(1.0);
  I bad = ~((a < K(inf)) & (b > zero)), below = a < b;
  F r = blend_T(bad | below, zero, a), d = blend_T(bad | below, one, b);
  for (;;) {
    F step = d;
    for (I far; anylane_T(far = abs_T(r) * K(fmod_down) > step);)
      step = blend_T(far, step * K(fmod_scale), step);
    F q = trunc_T(r / step);
    r = fmaexact_T(-q, step, r);
    if (__builtin_expect(!anylane_T(abs_T(r) >= d), 1)) break;
  }
  r = blend_T(below, a, blend_T(r < zero, r + d, r));
  return blend_T(bad, K(nan), copysign_T(r, x));
}""",
    """
F remainder_T(F x, F y) {
  F r = fmod_T(x, y), zero = K(0.0);
  return blend_T((r != zero) & ((r < zero) != (y < zero)), r + y, r);
}""",
)
_POWCORE_F32 = """
f32v powcore_f32(f32v x, f32v y) {
  f64v l = log2_f64(__builtin_convertvector(x, f64v)), w = __builtin_convertvector(y, f64v);
  return __builtin_convertvector(exp2_f64(l * w), f32v);
}"""
# log2(x) = h + l to about 2^-66: atanh's series with its first two terms in double-double
_POWCORE_F64 = """
F powcore_T(F x, F y) {
  F e, m = split_T(x, &e), f = m - K(1.0), d = m + K(1.0), dl = m - (d - K(1.0));
  F s = f / d, sl = fmaexact_T(-s, d, f);
  sl = fmaexact_T(-s, dl, sl) / d;
  F z = s * s, zl = fmaexact_T(s, s, -z) + (s + s) * sl;
  F q = z * POLY(logdd, z), c = K(0.33333333333333333) + q;
  F cl = (q - (c - K(0.33333333333333333))) + K(third_lo);
  F w = z * c, wl = fmaexact_T(z, c, -w) + fma_T(z, cl, zl * c);
  F v = s * w, vl = fmaexact_T(s, w, -v) + fma_T(s, wl, sl * w);
  F g = s + v, gl = ((s - g) + v) + (sl + vl);
  F p = g * K(log2e), pl = fmaexact_T(g, K(log2e), -p) + fma_T(g, K(log2e_lo), gl * K(log2e));
  p = p + p; pl = pl + pl;
  F h = e + p, l = ((e - h) + p) + pl;
  F t = y * h, tl = fmaexact_T(y, h, -t) + y * l;
  F u = fastmin_T(K(1100.0), fastmax_T(K(-1100.0), t));
  F n = (u + K(magic)) - K(magic), r = (u - n) + blend_T(abs_T(t) < K(1100.0), tl, K(0.0));
  F result = scale_T(fma_T(POLY(exp2, r), r, K(1.0)), n);
  I edge = (x == K(0.0)) | (x == K(inf)), up = (x == K(0.0)) == (y < K(0.0));
  F limit = blend_T(up, K(inf), K(0.0));
  return blend_T(edge & (y == y), limit, result);
}"""

# bounds in ULP, f32 and f64, with fma, above the largest error of a sweep over 20 million f32 bit
# patterns; tests/emit/test_vecmath.py holds the functions to them on fewer points
MAX_ULP: dict[str, tuple[float, float]] = {
    "exp": (1.0, 1.0),
    "exp2": (1.0, 1.0),
    "expm1": (2.0, 2.3),
    "tanh": (2.4, 2.5),
    "sigmoid": (2.4, 2.1),
    "sinh": (2.0, 2.0),
    "cosh": (1.5, 1.5),
    "log": (1.0, 1.0),
    "log2": (2.0, 2.0),
    "log10": (2.0, 2.0),
    "log1p": (1.0, 1.0),
    "asinh": (2.0, 2.0),
    "acosh": (2.3, 2.3),
    "atanh": (2.0, 2.0),
    "sin": (1.7, 1.7),
    "cos": (1.7, 1.7),
    "tan": (3.7, 3.7),
    "asin": (2.5, 2.5),
    "acos": (1.5, 1.5),
    "atan": (2.3, 2.3),
    "atan2": (2.7, 2.7),
    "erf": (1.5, 1.5),
    "erfc": (4.5, 4.5),
    "pow": (0.6, 1.3),
    "sqrt": (0.5, 0.5),
    "rsqrt": (1.5, 1.5),
}

SNIPPETS: list[Snippet] = [
    *for_floats(*_SIMPLE, *_EXP, *_LOG, *_TRIG, *_ARC, *_ERF, *_POW),
    *(one_float(t, "f32") for t in (_LOGTAIL_F32, _ERF_F32, _POWCORE_F32)),
    *(one_float(t, "f64") for t in (_LOGTAIL_F64, _ERF_F64, _POWCORE_F64)),
    fixed(_REDUCE_LANE, splits=False),
]
