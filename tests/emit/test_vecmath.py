"""The vector library: stated accuracy, special values, memory bounds, conversions, own symbols."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from vecmath_library import MEMORY, Library, gcc, zig

from lowtide import vecmath
from lowtide.vecmath.elementary import MAX_ULP

pytestmark = [
    pytest.mark.skipif(gcc() is None, reason="no gcc"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
F32, F64 = np.float32, np.float64


def _cpu_has(*flags: str) -> bool:
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return all(flag in words for flag in flags)


AVX2, AVX512 = (
    _cpu_has("avx2", "fma", "f16c"),
    _cpu_has("avx512f", "avx512bw", "avx512dq", "avx512vl"),
)
# name: lanes, vector bytes, flags, whether this machine runs it
BUILDS = {
    "baseline4": (4, 16, [], True),
    "avx2_8": (8, 32, ["-mavx2", "-mfma", "-mf16c"], AVX2),
    "avx512_16": (
        16,
        64,
        ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"],
        AVX512,
    ),
}


@pytest.fixture(scope="module", params=BUILDS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    lanes, vector_bytes, flags, runs = BUILDS[request.param]
    if not runs:
        pytest.skip("this processor lacks the instructions")
    return Library(tmp_path_factory.mktemp("vecmath"), lanes, vector_bytes, gcc() or [], flags)


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance in units in the last place of the rounded `want`; infinite where kinds differ."""
    rounded = want.astype(got.dtype)
    same = (np.isnan(got) & np.isnan(rounded)) | (got == rounded)
    finite = np.isfinite(got) & np.isfinite(rounded)
    distance = np.abs(got.astype(want.dtype) - want) / np.spacing(np.abs(rounded)).astype(
        want.dtype
    )
    return np.where(finite, distance, np.where(same, 0, np.inf))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _mpmath(name: str):
    def of(x: np.ndarray) -> np.ndarray:
        import mpmath

        function = getattr(mpmath, name)
        with mpmath.workprec(64):
            return np.array(
                [np.longdouble(mpmath.nstr(function(mpmath.mpf(float(v))), 25)) for v in x]
            )

    return of


def _torch(name: str):
    return lambda x: getattr(torch.special, name)(torch.from_numpy(x)).numpy()


REFERENCE = {
    **{
        n: getattr(np, n)
        for n in [
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "tanh",
            "sin",
            "cos",
            "tan",
            "sinh",
            "cosh",
            "sqrt",
        ]
    },
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": _sigmoid,
}
SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1,
    -1,
    0.5,
    -0.5,
    2,
    -2,
    3,
    -3,
    2.5,
    -2.5,
    88.72,
    88.73,
    89,
    -87.4,
    -103.9,
    -104.1,
    -200,
    709.7,
    709.8,
    -745.1,
    -745.2,
    1e30,
    -1e30,
    1e-30,
    1e-42,
    -1e-42,
    1e-310,
]


def samples(dtype: type, count: int) -> np.ndarray:
    """Every bit pattern alike, the usual ranges, values around 1, multiples of pi/2, specials."""
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 2**64, count, dtype=np.uint64)
    bits = raw.view(F64) if dtype is F64 else raw.astype(np.uint32).view(F32)
    limit = 120 if dtype is F32 else 760
    parts = [
        bits,
        rng.uniform(-limit, limit, count),
        rng.uniform(-1.3, 1.3, count),
        rng.uniform(-12, 12, count),
        1 + rng.normal(0, 0.2, count),
        10 ** rng.uniform(-6, 6, count),
        np.arange(1, count + 1) * np.pi / 2,
        SPECIAL,
    ]
    return np.concatenate([np.asarray(p).astype(dtype) for p in parts])


def _slack(library: Library) -> float:
    """Stated accuracy is with fma; separate multiply and add round once more."""
    return 1.0 if library.lanes > 4 else 1.5


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("dtype", [F32, F64])
def test_accuracy(library: Library, name: str, dtype: type) -> None:
    x = samples(dtype, 12000 if dtype is F32 else 3000)
    if name == "sigmoid":  # a subnormal result is flushed, as in torch
        x = x[~(x < (-87 if dtype is F32 else -708))]
    want = REFERENCE[name](x.astype(F64 if dtype is F32 else np.longdouble))
    suffix = "f32" if dtype is F32 else "f64"
    got = library(f"{name}_{suffix}", x)
    worst = ulps(got, want)
    assert worst.max() <= MAX_ULP[name][dtype is F64] * _slack(library), x[worst.argmax()]
    zero = (got == 0) & (want == 0)
    assert (np.signbit(got) == np.signbit(want))[zero].all()


@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_erf(library: Library, name: str) -> None:
    x = samples(F32, 20000)
    assert ulps(library(f"{name}_f32", x), _torch(name)(x.astype(F64))).max() <= MAX_ULP[name][
        0
    ] * _slack(library)
    rng = np.random.default_rng(1)
    y = np.concatenate([rng.uniform(-6, 6, 300), rng.uniform(0, 27, 300), rng.uniform(-1, 1, 300)])
    assert ulps(library(f"{name}_f64", y), _mpmath(name)(y)).max() <= MAX_ULP[name][1] * _slack(
        library
    )


def pairs(dtype: type, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    x, y = np.meshgrid(np.array(SPECIAL).astype(dtype), np.array(SPECIAL).astype(dtype))
    raw = [rng.permutation(samples(dtype, count)[:count]) for _ in range(2)]
    near, whole = rng.normal(0, 3, count), np.round(rng.normal(0, 10, count))
    left = np.concatenate([x.ravel(), raw[0], near.astype(dtype), near.astype(dtype)])
    return left, np.concatenate(
        [y.ravel(), raw[1], whole.astype(dtype), rng.normal(0, 2, count).astype(dtype)]
    )


@pytest.mark.parametrize("dtype", [F32, F64])
def test_two_arguments(library: Library, dtype: type) -> None:
    x, y = pairs(dtype, 3000)
    suffix, wide = ("f32", F64) if dtype is F32 else ("f64", np.longdouble)
    slack = _slack(library)
    for name, reference in (("pow", np.power), ("atan2", np.arctan2)):
        want = reference(x.astype(wide), y.astype(wide))
        worst = ulps(library(f"{name}_{suffix}", x, y), want)
        at = worst.argmax()
        assert worst[at] <= MAX_ULP[name][dtype is F64] * slack, (name, x[at], y[at])
    fmod = np.fmod(x, y)
    np.testing.assert_array_equal(library(f"fmod_{suffix}", x, y), fmod)
    moved = np.where((fmod != 0) & ((fmod < 0) != (y < 0)), fmod + y, fmod)
    np.testing.assert_array_equal(library(f"remainder_{suffix}", x, y), moved)
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    np.testing.assert_array_equal(library(f"minimum_{suffix}", x, y), torch.minimum(a, b).numpy())
    np.testing.assert_array_equal(library(f"maximum_{suffix}", x, y), torch.maximum(a, b).numpy())
    kept = ~np.isnan(x) & ~np.isnan(y)
    np.testing.assert_array_equal(library(f"fastmin_{suffix}", x, y)[kept], np.minimum(x, y)[kept])
    np.testing.assert_array_equal(library(f"fastmax_{suffix}", x, y)[kept], np.maximum(x, y)[kept])
    assert np.isnan(library(f"fastmax_{suffix}", np.zeros_like(x), np.full_like(x, np.nan))).all()


def test_quotients_near_the_largest_number(library: Library) -> None:
    """Without an instruction for it, the product of the quotient is taken in parts."""
    largest = np.finfo(F64).max
    x = np.repeat([largest, -largest, largest / 3, 1e300], 8)
    y = np.tile([255.0, 3.0, 1.5, 1e290, 7e-3, largest / 2, 1e154, 0.1], 4)
    np.testing.assert_array_equal(library("fmod_f64", x, y), np.fmod(x, y))


@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc", "abs"])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_rounding(library: Library, name: str, dtype: type) -> None:
    x = samples(dtype, 5000)
    got = library(f"{name}_{'f32' if dtype is F32 else 'f64'}", x)
    np.testing.assert_array_equal(got, getattr(np, name)(x))
    kept = ~np.isnan(x)
    assert (np.signbit(got) == np.signbit(getattr(np, name)(x)))[kept].all()


INTS = {"i64": np.int64, "i32": np.int32, "u8": np.uint8}


def _int_pairs(dtype: type) -> tuple[np.ndarray, np.ndarray]:
    info, rng = np.iinfo(dtype), np.random.default_rng(3)
    edge = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 100], dtype)
    edge = np.concatenate([edge, (np.arange(5) * -1).astype(dtype)])
    x, y = np.meshgrid(edge, edge)
    raw = [rng.integers(info.min, info.max, 2000, dtype=dtype, endpoint=True) for _ in range(2)]
    small = [
        rng.integers(0, 200, 2000).astype(dtype) - dtype(100 if info.min else 0) for _ in range(2)
    ]
    return np.concatenate([x.ravel(), raw[0], raw[0], small[0]]), np.concatenate(
        [y.ravel(), raw[1], small[1], small[0]]
    )


@pytest.mark.parametrize("kind", INTS)
def test_integers(library: Library, kind: str) -> None:
    x, y = _int_pairs(INTS[kind])
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    safe = (y != 0) & ~(
        (y == np.array(-1).astype(y.dtype)) & (x == np.iinfo(x.dtype).min) & (kind != "u8")
    )
    for name, numpy in (("floordiv", np.floor_divide), ("mod", np.remainder)):
        got = library(f"{name}_{kind}", x, y)
        np.testing.assert_array_equal(got[safe], numpy(x[safe], y[safe]))
        assert (got[y == 0] == 0).all()
    for name, of in (("minimum", torch.minimum), ("maximum", torch.maximum), ("pow", torch.pow)):
        np.testing.assert_array_equal(
            library(f"{name}_{kind}", x, y), of(a, b).numpy(), err_msg=name
        )
    shifts = ((y >= 0) & (y < 255)) if kind == "u8" else np.ones_like(y, bool)
    for name, of in (
        ("shiftleft", torch.bitwise_left_shift),
        ("shiftright", torch.bitwise_right_shift),
    ):
        np.testing.assert_array_equal(
            library(f"{name}_{kind}", x, y)[shifts], of(a, b).numpy()[shifts], err_msg=name
        )
    if kind != "u8":
        np.testing.assert_array_equal(library(f"abs_{kind}", x), a.abs().numpy())


TORCH = {
    "f64": torch.float64,
    "f32": torch.float32,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
}


@pytest.mark.parametrize("source", TORCH)
@pytest.mark.parametrize("target", TORCH)
def test_casts(library: Library, source: str, target: str) -> None:
    floats = torch.tensor([0.0, -0.0, 0.3, 1.9, 2.5, 99.9, 255.0, 1e-30, 3.7, 17.0, 200.5, 64.0])
    values = floats.to(TORCH[source])
    if source in ("f64", "f32", "i64", "i32") and target != "u8":
        values = torch.cat([values, -values, (floats * 1e6).to(TORCH[source])])
    want = values.to(TORCH[target]).numpy()
    given = -values.to(torch.int32).numpy() if source == "bool" else values.numpy()
    got = library(f"cast_{source}_{target}", given)
    np.testing.assert_array_equal(-got if target == "bool" else got, want)


@pytest.mark.parametrize(("half", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_halves(library: Library, half: str, dtype: torch.dtype) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    wide = torch.from_numpy(patterns.view(np.int16)).view(dtype).float().numpy()
    got = library(f"cast_{half}_f32", patterns)
    np.testing.assert_array_equal(got, wide)
    numbers = ~np.isnan(wide)
    assert (got.view(np.uint32) == wide.view(np.uint32))[numbers].all()
    # every pattern, the points between neighbours and next to those, and any float
    middle = (wide.astype(F64) + np.roll(wide, -1).astype(F64)) / 2
    middle = np.where(np.isfinite(middle), middle, 0).astype(F32)
    x = np.concatenate(
        [
            wide,
            middle,
            np.nextafter(middle, F32(np.inf)),
            np.nextafter(middle, F32(0)),
            samples(F32, 20000),
        ]
    )
    narrow = torch.from_numpy(x).to(dtype)
    back = library(f"cast_f32_{half}", x)
    kept = ~np.isnan(x)
    np.testing.assert_array_equal(
        back[kept], narrow.view(torch.int16).numpy().view(np.uint16)[kept]
    )
    assert torch.from_numpy(back[~kept].view(np.int16)).view(dtype).isnan().all()


def test_folds_and_selects(library: Library) -> None:
    w = library.lanes
    rng = np.random.default_rng(4)
    for suffix, dtype in (
        ("f32", F32),
        ("f64", F64),
        ("i32", np.int32),
        ("i64", np.int64),
        ("u8", np.uint8),
    ):
        x = rng.integers(0, 9, 20 * w).astype(dtype)
        y = rng.integers(0, 9, 20 * w).astype(dtype)
        rows = x.reshape(-1, w)
        np.testing.assert_array_equal(library(f"hsum_{suffix}", x), rows.sum(1).astype(dtype))
        np.testing.assert_array_equal(
            library(f"hprod_{suffix}", x), np.multiply.reduce(rows, 1, dtype=dtype)
        )
        np.testing.assert_array_equal(library(f"hmin_{suffix}", x), rows.min(1))
        np.testing.assert_array_equal(library(f"hmax_{suffix}", x), rows.max(1))
        mask = -(x > 4).astype(np.int32)
        np.testing.assert_array_equal(library(f"select_{suffix}", mask, x, y), np.where(mask, x, y))
        np.testing.assert_array_equal(library(f"splat_{suffix}", x[:1]), np.repeat(x[:1], w)[:1])
    for suffix, dtype in (("f32", F32), ("f64", F64)):
        x = rng.normal(size=20 * w).astype(dtype)
        x[::3] = np.where(np.arange(len(x[::3])) % 5 == 0, np.nan, x[::3])
        np.testing.assert_array_equal(library(f"hmin_{suffix}", x), x.reshape(-1, w).min(1))
        np.testing.assert_array_equal(library(f"hmax_{suffix}", x), x.reshape(-1, w).max(1))
    mask = -rng.integers(0, 2, 40 * w).astype(np.int32)
    mask[:w], mask[w : 2 * w] = 0, -1
    np.testing.assert_array_equal(library("hor_bool", mask) != 0, mask.reshape(-1, w).any(1))
    np.testing.assert_array_equal(library("hand_bool", mask) != 0, mask.reshape(-1, w).all(1))


@pytest.mark.parametrize("dtype", MEMORY)
def test_memory(library: Library, dtype: str) -> None:
    """Accesses end at the last byte of a page that is followed by one without access."""
    w = library.lanes
    size = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "bf16": 2, "f16": 2}.get(dtype, 1)
    page = mmap.PAGESIZE
    buffers = [mmap.mmap(-1, 2 * page) for _ in range(2)]
    libc = ctypes.CDLL(None)
    ends: list[int] = []
    for buffer in buffers:
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        assert libc.mprotect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), 0) == 0
        ends.append(address + page)
    values = bytes(range(1, 9)) * (w * 3) if dtype != "bool" else bytes([0, 1, 1]) * (w * 3)
    call = library.so.__getattr__
    for n in range(w + 1):
        ctypes.memset(ends[0] - page, 0x55, page)
        ctypes.memmove(ends[1] - n * size, values, n * size)
        call(f"copy_part_{dtype}")(
            ctypes.c_void_p(ends[0] - n * size), ctypes.c_void_p(ends[1] - n * size), n
        )
        assert ctypes.string_at(ends[0] - n * size, n * size) == values[: n * size], n
        assert ctypes.string_at(ends[0] - n * size - 8, 8) == b"\x55" * 8
        wide = ctypes.create_string_buffer(w * size)
        call(f"widen_part_{dtype}")(wide, ctypes.c_void_p(ends[1] - n * size), n)
        assert wide.raw == values[: n * size] + bytes((w - n) * size), n
        span = max(3 * (n - 1) + 1, 0) * size
        ctypes.memmove(ends[1] - span, values, span)
        strided = ctypes.c_void_p(ends[1] - span)
        stride, one = ctypes.c_int64(3), ctypes.c_int64(1)
        call(f"copy_strided_{dtype}")(ctypes.c_void_p(ends[0] - n * size), strided, one, stride, n)
        want = b"".join(values[3 * i * size : (3 * i + 1) * size] for i in range(n))
        assert ctypes.string_at(ends[0] - n * size, n * size) == want, n


def _undefined(path: Path) -> str:
    return subprocess.run(
        ["nm", "-D", "-u", str(path)], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_nothing_is_undefined(library: Library) -> None:
    assert _undefined(library.path) == ""


def test_only_what_is_needed() -> None:
    text = vecmath.functions(["exp_f32"], 16, 64)
    assert "exp_f32(f32v x)" in text
    assert "f64" not in text
    assert "sin" not in text
    assert len(text) < 6000
    assert "exp_f64_x8(f64x8 x)" in vecmath.functions(["exp_f64"], 16, 64)
    with pytest.raises(KeyError):
        vecmath.functions(["no_such_f32"], 16, 64)


def test_many_calls_are_not_inlined() -> None:
    def text(count: int, fmas: int = 1) -> str:
        kernel = ("r = exp_f64(r);" + "r = fma_f64(r, r, r);" * fmas) * count
        return vecmath.functions(["exp_f64", "fma_f64"], 16, 64, [kernel])

    assert "LT_CALLED" not in text(4)
    assert "LT_CALLED" not in text(4, fmas=200)  # a call of exp would not make these shorter
    many = text(40)
    assert many.count("LT_CALLED") == 1
    assert "LT_CALLED f64x8 exp_f64_x8(f64x8 x)" in many
    assert "LT_INLINE f64v exp_f64(f64v x)" in many  # it only takes the vector apart


@pytest.mark.skipif(zig() is None or not AVX512, reason="no ziglang, or no AVX-512")
def test_zig(tmp_path: Path) -> None:
    library = Library(tmp_path, 16, 64, zig() or [], ["-march=native"])
    x = samples(F32, 5000)
    for name in ("exp", "log", "tanh", "sin"):
        worst = ulps(library(f"{name}_f32", x), REFERENCE[name](x.astype(F64))).max()
        assert worst <= MAX_ULP[name][0]
    test_halves(library, "f16", torch.float16)
    test_integers(library, "i64")
    test_memory(library, "bf16")
    assert _undefined(library.path) == ""
