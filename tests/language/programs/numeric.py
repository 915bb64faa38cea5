"""Numbers: int, float, bool and complex arithmetic, conversions, and the math module."""

import cmath
import math
from math import floor, pi
from typing import List, Tuple

import torch

from tests.language.support import program


@program(calls=lambda: [(7, 3), (-7, 3), (7, -3), (-7, -3)])
def int_arithmetic(a: int, b: int) -> Tuple[int, int, int, int, int]:
    return a + b, a - b, a * b, a // b, a % b


@program(calls=lambda: [(7.5, 2.0), (-7.5, 2.0), (7.5, -2.0), (0.0, 3.0)], torchscript=False)
def float_arithmetic(a: float, b: float) -> List[float]:
    return [a + b, a - b, a * b, a / b, a // b, a % b, -a, +b]


@program(calls=lambda: [(7, 2.5), (-7, 2.5)])
def mixed_arithmetic(a: int, b: float) -> Tuple[float, float, float, float, float]:
    return a + b, a * b, a / b, a // b, b - a


@program(calls=lambda: [(7, 2), (-7, 2), (6, 3)])
def true_division(a: int, b: int) -> float:
    return a / b


@program(calls=lambda: [(3, 4), (-2, 3), (2, 0)])
def int_power(a: int, b: int) -> float:
    return float(a**b)


@program(calls=lambda: [(2.0, 0.5), (9.0, -0.5)])
def float_power(a: float, b: float) -> Tuple[float, float]:
    return a**b, pow(a, b)


@program(args=lambda: (3,), torchscript=False)
def int_power_is_int(a: int) -> int:
    return a**3 + pow(a, 2)


@program(calls=lambda: [(12, 10), (-5, 3)], torchscript=False)
def bit_operations(a: int, b: int) -> Tuple[int, int, int, int]:
    return a & b, a | b, a ^ b, ~a


@program(calls=lambda: [(5, 2), (-9, 1)])
def shifts(a: int, b: int) -> Tuple[int, int]:
    return a << b, a >> b


@program(calls=lambda: [(True, False), (True, True), (False, False)])
def bool_logic(a: bool, b: bool) -> Tuple[bool, bool, bool, bool]:
    return a and b, a or b, not a, a != b


@program(calls=lambda: [(True, False), (True, True)])
def bool_bits(a: bool, b: bool) -> Tuple[bool, bool, bool]:
    return a & b, a | b, a ^ b


@program(args=lambda: (True,))
def bool_as_number(a: bool) -> Tuple[int, float]:
    return a + 1, a * 2.5


@program(calls=lambda: [(3.99,), (-3.99,), (0.0,)])
def conversions(x: float) -> Tuple[int, bool, float, str]:
    return int(x), bool(x), float(int(x)), str(int(x))


@program(calls=lambda: [(0,), (5,)])
def to_bool(n: int) -> Tuple[bool, int, float]:
    b = bool(n)
    return b, int(b), float(b)


@program(calls=lambda: [(2.5,), (3.5,), (-2.5,), (2.4999,), (-0.4,)])
def rounding(x: float) -> float:
    return float(round(x))


@program(calls=lambda: [(2.567,), (-2.345,)], torchscript=False)
def rounding_digits(x: float) -> float:
    return round(x, 2)


@program(calls=lambda: [(7, 3), (-7, 3), (7, -3)])
def divmod_int(a: int, b: int) -> Tuple[int, int]:
    return divmod(a, b)


@program(calls=lambda: [(7.5, 2.0), (-7.5, 2.0)])
def divmod_float(a: float, b: float) -> Tuple[float, float]:
    q, r = divmod(a, b)
    return q, r


@program(calls=lambda: [(7.5, 2.0), (7.5, 0.0)], raises=ZeroDivisionError, torchscript=False)
def divmod_by_zero(a: float, b: float) -> Tuple[float, float]:
    return divmod(a, b)


@program(args=lambda: (3, 8))
def min_max_two(a: int, b: int) -> Tuple[int, int]:
    return min(a, b), max(a, b)


@program(args=lambda: (3, 8, -1))
def min_max_three(a: int, b: int, c: int) -> Tuple[int, int]:
    return min(a, b, c), max(a, b, c)


@program(args=lambda: (2.5, 8))
def min_max_mixed(a: float, b: int) -> Tuple[float, float]:
    return min(a, float(b)), max(a, float(b))


@program(args=lambda: (-3, -2.5))
def absolute(a: int, b: float) -> Tuple[int, float]:
    return abs(a), abs(b)


@program(args=lambda: (0.75,))
def math_functions(x: float) -> List[float]:
    return [
        math.sin(x),
        math.cos(x),
        math.tan(x),
        math.asin(x),
        math.acos(x),
        math.atan(x),
        math.sinh(x),
        math.cosh(x),
        math.tanh(x),
        math.exp(x),
        math.expm1(x),
        math.log(x),
        math.log1p(x),
        math.log10(x),
        math.sqrt(x),
        math.erf(x),
        math.gamma(x),
        math.lgamma(x),
    ]


@program(calls=lambda: [(2.7,), (-2.7,)])
def math_rounding(x: float) -> Tuple[int, int, int]:
    return math.floor(x), math.ceil(x), int(x)


@program(args=lambda: (3.7, -4.2), torchscript=False)
def math_beyond_torchscript(a: float, b: float) -> List[float]:
    whole = math.trunc(a) + math.isqrt(17)
    return [math.log2(a), math.hypot(a, b), math.dist([a], [b]), float(whole), math.tau]


@program(args=lambda: (3.0, -4.0))
def math_two_arguments(a: float, b: float) -> List[float]:
    return [
        math.atan2(a, b),
        math.pow(a, 2.0),
        math.fmod(b, a),
        math.copysign(a, b),
    ]


@program(args=lambda: (12, 18))
def math_integers(a: int, b: int) -> Tuple[int, int]:
    return math.gcd(a, b), math.factorial(5)


@program(args=lambda: (2.0,), torchscript=False)
def math_constants(r: float) -> Tuple[float, float, float]:
    return math.pi * r**2, math.e, 2 * pi * r


@program(calls=lambda: [(1.0,), (math.inf,), (-math.inf,), (math.nan,)])
def infinities(x: float) -> Tuple[bool, bool, bool, bool]:
    return math.isinf(x), math.isnan(x), math.isfinite(x), x > float("inf")


@program(args=lambda: (1.0,))
def infinity_literals(x: float) -> Tuple[float, float, float]:
    return float("inf") + x, -math.inf, float("nan")


@program(args=lambda: (180.0,))
def degrees(x: float) -> Tuple[float, float]:
    return math.radians(x), math.degrees(1.0)


@program(args=lambda: (5.25,))
def frexp_modf(x: float) -> Tuple[float, float, float, int]:
    frac, whole = math.modf(x)
    m, e = math.frexp(x)
    return frac, whole, m, e


@program(args=lambda: (2.7,), torchscript=False)
def imported_from_math(x: float) -> float:
    return floor(x) * pi


@program(args=lambda: (1 + 2j, 3 - 1j))
def complex_arithmetic(a: complex, b: complex) -> List[complex]:
    return [a + b, a - b, a * b, a / b, a * 2.0, a + 1]


@program(args=lambda: (3 + 4j,), torchscript=False)
def complex_parts(a: complex) -> Tuple[float, float, float]:
    return a.real, a.imag, abs(a)


@program(args=lambda: (1.5, -2.0))
def complex_constructed(re: float, im: float) -> complex:
    return complex(re, im) * 1j


@program(args=lambda: (1 + 1j,), optional=True, torchscript=False)
def complex_functions(a: complex) -> Tuple[complex, float, complex]:
    return cmath.exp(a), cmath.phase(a), a.conjugate()


@program(args=lambda: (10,), torchscript=False)
def augmented(n: int) -> Tuple[int, float]:
    a = n
    a += 3
    a -= 1
    a *= 2
    a //= 5
    a %= 4
    b = 1.5
    b *= 2
    b /= 4
    b += a
    return a, b


@program(args=lambda: (13,))
def augmented_bits(n: int) -> int:
    n &= 7
    n |= 16
    n ^= 3
    n <<= 2
    n >>= 1
    return n


@program(calls=lambda: [(1, 2, 3), (3, 2, 1), (2, 2, 2)])
def chained_comparison(a: int, b: int, c: int) -> Tuple[bool, bool, bool]:
    return a < b < c, a <= b <= c, a == b == c


@program(calls=lambda: [(1, 1.0), (2, 1.5)])
def comparison_across_types(a: int, b: float) -> List[bool]:
    return [a == b, a != b, a < b, a <= b, a > b, a >= b]


@program(args=lambda: (5,))
def precedence(n: int) -> Tuple[float, int, bool]:
    return float(-(n**2)), 2 + 3 * n % 4 - -n, not n > 3 and n < 10 or n == 5


@program(args=lambda: (0,), raises=ZeroDivisionError)
def division_by_zero(n: int) -> int:
    return 10 // n


@program(args=lambda: (0,), raises=ZeroDivisionError)
def true_division_by_zero(n: int) -> float:
    return 10 / n


@program(args=lambda: (2**62,))
def large_integers(n: int) -> Tuple[int, bool]:
    return n - 1 + n // 2, n > 2**61


@program(args=lambda: (27,))
def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


@program(args=lambda: (48, 36))
def euclid(a: int, b: int) -> int:
    while b != 0:
        a, b = b, a % b
    return a


@program(args=lambda: (30,))
def sieve(n: int) -> List[int]:
    prime = [True] * (n + 1)
    out: List[int] = []
    for i in range(2, n + 1):
        if prime[i]:
            out.append(i)
            for j in range(i * i, n + 1, i):
                prime[j] = False
    return out


@program(args=lambda: (2.0,))
def newton(x: float) -> float:
    y = x
    while abs(y * y - x) > 1e-9:
        y = 0.5 * (y + x / y)
    return y


@program(args=lambda: (torch.tensor(5), torch.tensor(2.5)))
def from_tensors(a: torch.Tensor, b: torch.Tensor) -> Tuple[int, float, bool, float]:
    return int(a), float(b), bool(a > 3), float(a.item()) + float(b.item())


@program(args=lambda: (255,))
def number_literals(n: int) -> Tuple[int, int, int, int, float]:
    return n + 0xFF, 0b101, 0o17, 1_000_000, 1.5e-3


@program(calls=lambda: [(torch.ones(3), 2**63), (torch.ones(3), 10**20)], raises=OverflowError,
         torchscript=False)  # fmt: skip
def int_too_large_for_a_tensor(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n + 1


@program(args=lambda: (torch.ones(3),), raises=OverflowError, torchscript=False)
def constant_too_large_for_a_tensor(x: torch.Tensor) -> torch.Tensor:
    return torch.clamp(x, max=-(10**19))
