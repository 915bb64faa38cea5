"""Prints ops on tensors that are no kernels as C: sizes, sorts, places of what is true, rows that
are chosen or written.

In: an op outside of any region, its operands (see `values`). Out: its results, None if it is none
of these.

    x.argsort(descending=True)     lt_sort_f32(x, rows, n, 1, 1, keys, places, …);
    x[mask]                        z_r7 = lt_choose(out, x, mask, n, row bytes);

A result whose size the data decide has room for the most that it may be. NaN counts as larger than
any number, and equal values keep their order, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from lowtide.c_library.numbers import Numbers
from lowtide.c_library.values import Again, Frame, Refused, Tensor, c_int, is_int
from lowtide.codegen.c.c_names import c_index
from lowtide.ir import dtypes
from lowtide.ir.core import Op
from lowtide.ir.dtypes import DType
from lowtide.texpr.build import lone_size
from lowtide.texpr.index import Index, as_index, product
from lowtide.texpr.index_ranges import nonnegative

_SORTED: Final = {"f32": "float", "f64": "double", "i64": "int64_t", "i32": "int32_t",
                  "u8": "uint8_t", "bool": "uint8_t"}  # fmt: skip


def _sort_text(name: str, ctype: str) -> str:
    nan = "a != a ? 0 : b != b ? 1 : " if name in ("f32", "f64") else ""
    return f"""\
static int lt_before_{name}({ctype} a, {ctype} b, int down) {{
  if (down) {{ const {ctype} c = a; a = b; b = c; }}
  return {nan}a < b;
}}
/* stable: places of `n` elements of a row in order; work: n + n places, n keys */
static void lt_sort_{name}(const {ctype} *x, int64_t n, int64_t step, int down, int64_t *places,
                           int64_t *other, {ctype} *keys) {{
  for (int64_t i = 0; i < n; i++) places[i] = i, keys[i] = x[i * step];
  int64_t *from = places, *to = other;
  for (int64_t width = 1; width < n; width *= 2) {{
    for (int64_t begin = 0; begin < n; begin += 2 * width) {{
      const int64_t middle = lt_min(begin + width, n), end = lt_min(begin + 2 * width, n);
      int64_t a = begin, b = middle;
      for (int64_t k = begin; k < end; k++) {{
        const int is_b = a >= middle || (b < end && lt_before_{name}(keys[from[b]], keys[from[a]],
                                                                     down));
        to[k] = is_b ? from[b++] : from[a++];
      }}
    }}
    int64_t *const last = from;
    from = to;
    to = last;
  }}
  if (from != places) memcpy(places, from, (size_t)n * sizeof *places);
}}
static void lt_sorted_{name}(const char *x_, char *values_, char *places_, int64_t outer, int64_t n,
                             int64_t inner, int64_t kept, int down, char *work) {{
  const {ctype} *x = (const {ctype} *)(const void *)x_;
  {ctype} *values = ({ctype} *)(void *)values_;
  int64_t *out = (int64_t *)(void *)places_, *places = (int64_t *)(void *)work;
  {ctype} *keys = ({ctype} *)(void *)(places + 2 * n);
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < inner; i++) {{
      lt_sort_{name}(x + o * n * inner + i, n, inner, down, places, places + n, keys);
      for (int64_t k = 0; k < kept; k++) {{
        const int64_t at = (o * kept + k) * inner + i;
        if (values) values[at] = keys[places[k]];
        if (out) out[at] = places[k];
      }}
    }}
}}
"""


def _places_text(name: str, ctype: str) -> str:
    return f"""\
/* place k of what is true has its index in dim d at k * row + d * dim */
static int64_t lt_places_{name}(const char *x_, char *out_, int64_t n, int64_t dims,
                                const int64_t *sizes, int64_t row, int64_t dim) {{
  const {ctype} *x = (const {ctype} *)(const void *)x_;
  int64_t *out = (int64_t *)(void *)out_, count = 0;
  for (int64_t i = 0; i < n; i++) {{
    if (!(x[i] != 0)) continue;
    int64_t rest = i;
    for (int64_t d = dims - 1; d >= 0; d--) {{
      out[count * row + d * dim] = rest % sizes[d];
      rest /= sizes[d];
    }}
    count++;
  }}
  return count;
}}
"""


HELPERS: Final = (
    "".join(_sort_text(n, c) + _places_text(n, c) for n, c in _SORTED.items())
    + """\
static int64_t lt_choose(char *out, const char *x, const char *mask, int64_t n, int64_t nbytes) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++)
    if (mask[i]) memcpy(out + nbytes * count++, x + nbytes * i, (size_t)nbytes);
  return count;
}
static int64_t lt_put(char *x, const char *values, const char *mask, int64_t n, int64_t nbytes,
                      int64_t count) {
  int64_t k = 0;
  for (int64_t i = 0; i < n; i++) k += mask[i] != 0;
  if (k != count) return 1;
  for (int64_t i = k = 0; i < n; i++)
    if (mask[i]) memcpy(x + nbytes * i, values + nbytes * k++, (size_t)nbytes);
  return 0;
}
"""
)

_PARAMETERS: Final[Mapping[str, tuple[tuple[str, object], ...]]] = {
    "sort": (("dim", -1), ("descending", False), ("stable", None)),
    "argsort": (("dim", -1), ("descending", False), ("stable", None)),
    "topk": (("k", None), ("dim", -1), ("largest", True), ("sorted", True)),
    "nonzero": (("as_tuple", False),),
    "where": (),
    "item": (),
    "tolist": (),
    "masked_select": (("mask", None),),
}


def memory(frame: Frame, dtype: DType, shape: Sequence[Index]) -> Tensor:
    """Return a tensor of a new temporary; `declared` gives its C."""
    piece = frame.take(product(shape) * dtype.itemsize)
    return Tensor(
        at=frame.fresh("p_"), dtype=dtype, shape=tuple(shape), piece=piece, family=object(),
        writable=True,
    )  # fmt: skip


def declared(x: Tensor) -> str:
    """Return the declaration of a temporary."""
    return f"char *{x.at} = workspace + offsets[{x.piece}]; (void){x.at};"


def made(frame: Frame, numbers: Numbers, op: Op, given: Sequence[Any]) -> list[object] | None:
    """See the module's text. Raises Refused."""
    if not given or not isinstance(given[0], Tensor):
        return None
    x = given[0]
    if op.name.startswith("torch."):
        sizes = _of_sizes(op.name.removeprefix("torch."), x, given)
        if sizes is not None:
            return sizes
    if op.name == "torch.getitem":
        is_mask = len(given) == 2 and isinstance(given[1], Tensor)
        if is_mask and given[1].dtype is dtypes.boolean and op.attrs["spec"] == ("tensor",):
            return [_chosen(frame, numbers, x, given[1])]
        return None
    target = op.name.removeprefix("torch.")
    if op.name == "call_torch":
        target = str(op.attrs["target"]).rpartition(".")[2]
    if target not in _PARAMETERS or (target == "where" and len(given) > 1):
        return None
    found = _bound(op, target, given[1:])
    match target:
        case "item" | "tolist" if not x.shape or target == "item":
            return [numbers.item(x)]
        case "sort" | "argsort":
            n = x.shape[_dim(found["dim"], x)] if x.shape else as_index(1)
            values, places = _sorted(frame, numbers, x, found["dim"], n, found["descending"])
            return [places] if target == "argsort" else _results(op, [values, places])
        case "topk":
            if not is_int(found["k"]) or not x.shape:
                raise Refused("needs an int for `k`")
            dim = _dim(found["dim"], x)
            k, n = as_index(found["k"]), x.shape[dim]
            if not (frame.is_sure(k) and frame.is_sure(n - k)):
                bad = _bad(f"{c_int(k)} < 0 || {c_int(k)} > {c_int(n)}")
                numbers.lines.append(bad)
            kept = k if nonnegative(k) else numbers.int_of(c_int(k), 0, n)
            return _results(op, _sorted(frame, numbers, x, dim, kept, found["largest"]))
        case "nonzero":
            return _nonzero(frame, numbers, x, found["as_tuple"])
        case "where":
            return _nonzero(frame, numbers, x, True)
        case "masked_select" if isinstance(found["mask"], Tensor):
            mask: Tensor = found["mask"]
            if mask.shape == x.shape:
                return [_chosen(frame, numbers, x, mask)]
        case _:
            pass
    return None


def _bad(test: str) -> str:
    """Return the statement that raises if the test holds."""
    return f"fault |= {test}; /* &fault */"


def _results(op: Op, made: Sequence[object]) -> list[object]:
    return list(made) if len(op.results) == len(made) else [tuple(made)]


def _bound(op: Op, target: str, given: Sequence[object]) -> dict[str, Any]:
    """Return the arguments after the tensor by name."""
    parameters = _PARAMETERS[target]
    found: dict[str, Any] = dict(parameters)
    kwnames = cast("tuple[str, ...]", op.attrs.get("kwnames", ()))
    count = len(given) - len(kwnames)
    pairs = [
        *zip([n for n, _ in parameters], given[:count], strict=False),
        *zip(kwnames, given[count:], strict=True),
    ]
    for name, value in pairs:
        if name == "stable" and not any(n == "stable" for n, _ in pairs):
            continue
        if name not in found:
            raise Refused(f"has an argument `{name}`")
        found[name] = value
    for name in ("dim", "descending", "largest", "as_tuple"):
        if name in found and not isinstance(found[name], int):
            raise Refused(f"needs a constant for `{name}`")
    return found


def _of_sizes(name: str, x: Tensor, given: Sequence[Any]) -> list[object] | None:
    match name:
        case "shape" | "size":
            return [[_plain(n) for n in x.shape]]
        case "size.dim" if type(given[1]) is int:
            return [_plain(x.shape[_dim(given[1], x)])]
        case "dim":
            return [len(x.shape)]
        case "len" if x.shape:
            return [_plain(x.shape[0])]
        case "numel":
            return [_plain(product(x.shape))]
        case _:
            return None


def _plain(n: Index) -> object:
    return n if n.const is None else n.const


def _dim(dim: int, x: Tensor) -> int:
    rank = max(len(x.shape), 1)
    if not -rank <= dim < rank:
        raise Refused("has a dim out of range")
    return dim % rank


def _sorted(
    frame: Frame, numbers: Numbers, x: Tensor, dim: int, kept: Index, down: bool
) -> list[Tensor]:
    """Return the first `kept` values and their places, along a dim."""
    if x.dtype.name not in _SORTED:
        raise Refused(f"sorts a tensor of {x.dtype.name}")
    shape = x.shape or (as_index(1),)
    dim = _dim(dim, x)
    outer, n, inner = product(shape[:dim]), shape[dim], product(shape[dim + 1 :])
    result = (*shape[:dim], kept, *shape[dim + 1 :]) if x.shape else ()
    frame.touch(x)
    work = frame.take(n * (16 + x.dtype.itemsize))
    values, places = memory(frame, x.dtype, result), memory(frame, dtypes.i64, result)
    counts = ", ".join(map(c_int, (outer, n, inner, kept)))
    numbers.lines += [
        declared(values),
        declared(places),
        f"lt_sorted_{x.dtype.name}({x.at}, {values.at}, {places.at}, {counts}, {int(down)}, "
        f"workspace + offsets[{work}]);",
    ]
    return [values, places]


def _check_mask(frame: Frame, numbers: Numbers, x: Tensor, mask: Tensor) -> None:
    """Print the check that a mask has the sizes of the dims that it stands for."""
    rank = len(mask.shape)
    if not rank or rank > len(x.shape):
        raise Refused("has a mask of other dims")
    for a, b in zip(mask.shape, x.shape, strict=False):
        if a is not b and a.const is not None and b.const is not None:
            raise Refused("has a mask of another size")
        if a is not b:
            found = [lone_size(n) for n in (a, b)]
            names = [x.name for x in found if x is not None and x.name not in frame.runtime]
            if len(names) == 2:
                raise Again(same=[(names[0], names[1])])
            numbers.lines.append(_bad(f"{c_index(a)} != {c_index(b)}"))


def mask_set(frame: Frame, numbers: Numbers, op: Op, given: Sequence[Any]) -> bool:
    """Print `x[mask] = values` for a tensor that has one row for each place of the mask. Return
    whether it is so."""
    if op.attrs.get("target") != "Tensor.__setitem__" or op.attrs.get("spec") != ("tensor",):
        return False
    x, mask, values = given
    if not isinstance(mask, Tensor) or mask.dtype is not dtypes.boolean:
        return False
    rest = x.shape[len(mask.shape) :]
    if not isinstance(values, Tensor) or values.dtype is not x.dtype:
        return False
    if values.shape[1:] != rest or not values.shape or values.shape[0].const == 1:
        return False  # one row for all places
    _check_mask(frame, numbers, x, mask)
    frame.touch(x, mask, values)
    row, n = product(rest) * x.dtype.itemsize, product(mask.shape)
    counts = ", ".join(map(c_int, (n, row, values.shape[0])))
    numbers.lines.append(_bad(f"lt_put({x.at}, {values.at}, {mask.at}, {counts})"))
    return True


def _chosen(frame: Frame, numbers: Numbers, x: Tensor, mask: Tensor) -> Tensor:
    """Return x[mask]."""
    _check_mask(frame, numbers, x, mask)
    rank = len(mask.shape)
    count, rest = product(x.shape[:rank]), x.shape[rank:]
    frame.touch(x, mask)
    buffer = memory(frame, x.dtype, (count, *rest))
    numbers.lines.append(declared(buffer))
    row = product(rest) * x.dtype.itemsize
    call = f"lt_choose({buffer.at}, {x.at}, {mask.at}, {c_int(count)}, {c_int(row)})"
    n = numbers.int_of(call, 0, frame.most(count))
    return Tensor(
        at=buffer.at, dtype=x.dtype, shape=(n, *rest), piece=buffer.piece, family=buffer.family,
        writable=True,
    )  # fmt: skip


def _nonzero(frame: Frame, numbers: Numbers, x: Tensor, as_tuple: bool) -> list[object]:
    if x.dtype.name not in _SORTED or not x.shape:
        raise Refused(f"of a tensor of {x.dtype.name} [{', '.join(map(str, x.shape))}]")
    count, rank = product(x.shape), len(x.shape)
    frame.touch(x)
    buffer = memory(frame, dtypes.i64, (as_index(rank), count))
    sizes = frame.fresh("n_")
    numbers.lines += [
        declared(buffer),
        f"const int64_t {sizes}[] = {{{', '.join(map(c_int, x.shape))}}};",
    ]
    steps = f"1, {c_int(count)}" if as_tuple else f"{rank}, 1"
    call = (
        f"lt_places_{x.dtype.name}({x.at}, {buffer.at}, {c_int(count)}, {rank}, {sizes}, {steps})"
    )
    n = numbers.int_of(call, 0, frame.most(count))
    if not as_tuple:
        return [replace(buffer, shape=(n, as_index(rank)))]
    parts = [f"({buffer.at} + {c_int(count * 8 * d)})" if d else buffer.at for d in range(rank)]
    return [tuple(replace(buffer, at=at, shape=(n,)) for at in parts)]


def block_set(
    frame: Frame, lines: list[str], returns: Mapping[str, str], op: Op, given: Sequence[Any]
) -> bool:
    """Print `x[i, a:b] = value` for ints and slices, if the value has just that type and size:
    only these elements are written. Return whether it is so."""
    if op.attrs.get("target") != "Tensor.__setitem__" or op.attrs.get("kwnames"):
        return False
    x, *items, value = given
    spec = cast("tuple[str, ...]", op.attrs["spec"])
    if not isinstance(value, Tensor) or value.dtype is not x.dtype:
        return False
    chosen = _ranges(frame, x, spec, items)
    if chosen is None:
        return False
    shape = [n for _, n, is_kept in chosen if is_kept]
    tests = [f"{c_index(a)} != {c_index(b)}" for a, b in zip(shape, value.shape, strict=False)
             if a is not b]  # fmt: skip
    is_fixed = all(a is b or None in (a.const, b.const) for a, b in zip(shape, value.shape,
                                                                        strict=False))  # fmt: skip
    if len(shape) != len(value.shape) or not is_fixed or tests:
        return False
    frame.touch(x, value)
    for k, (begin, n, _) in enumerate(chosen):
        slack = x.shape[k] - n
        if not (frame.is_sure(begin) and frame.is_sure(slack - begin)):
            lines.append(f"if ({c_int(begin)} < 0 || {c_int(begin)} > {c_int(slack)}) "
                         f"{returns['BAD_INDEX']}")  # fmt: skip
    _copy_block(frame, lines, x, value, chosen)
    return True


def _ranges(
    frame: Frame, x: Tensor, spec: Sequence[str], items: Sequence[Any]
) -> list[tuple[Index, Index, bool]] | None:
    """Return for each dim where the chosen part begins, its size, and whether the dim is kept; None
    if the items are other than ints and slices of step 1 with known ends."""
    found: list[tuple[Index, Index, bool]] = []
    rest = list(items)
    for word in spec:
        if word == "ellipsis":
            missing = len(x.shape) - (len(spec) - 1)
            found += [(as_index(0), n, True) for n in x.shape[len(found) : len(found) + missing]]
            continue
        if len(found) >= len(x.shape):
            return None
        n = x.shape[len(found)]
        if word == "int" and is_int(rest[0]):
            begin = as_index(rest.pop(0))
            if begin.const is not None and begin.const < 0:
                begin = n + begin
            found.append((begin, as_index(1), False))
        elif word == "slice":
            start, stop, step = rest[:3]
            del rest[:3]
            if step not in (None, 1):
                return None
            begin = as_index(0) if start is None else as_index(start) if is_int(start) else None
            end = n if stop is None else as_index(stop) if is_int(stop) else None
            if begin is None or end is None or not (
                frame.is_sure(begin) and frame.is_sure(end - begin) and frame.is_sure(n - end)
            ):  # fmt: skip
                return None
            found.append((begin, end - begin, True))
        else:
            return None
    return [*found, *((as_index(0), n, True) for n in x.shape[len(found) :])]


def _copy_block(
    frame: Frame,
    lines: list[str],
    x: Tensor,
    value: Tensor,
    chosen: Sequence[tuple[Index, Index, bool]],
) -> None:
    whole = len(chosen)  # the last dims that are written as a whole are copied at once
    while whole and chosen[whole - 1][0] == 0 and chosen[whole - 1][1] is x.shape[whole - 1]:
        whole -= 1
    if whole:
        whole -= 1
    nbytes = product(n for _, n, _ in chosen[whole:]) * x.dtype.itemsize
    names = [frame.fresh("i_") for _ in chosen[:whole]]
    for name, (_, n, _) in zip(names, chosen, strict=False):
        lines.append(f"for (int64_t {name} = 0; {name} < {c_int(n)}; {name}++)")
    to, source = ["0"], ["0"]
    for k, (begin, _, _) in enumerate(chosen):
        step = c_int(product(x.shape[k + 1 :]) * x.dtype.itemsize)
        inner = c_int(product(m for _, m, _ in chosen[k + 1 :]) * x.dtype.itemsize)
        at = f"{names[k]} + {c_int(begin)}" if k < whole else c_int(begin)
        to.append(f"({at}) * {step}")
        if k < whole:
            source.append(f"{names[k]} * {inner}")
    lines.append(
        f"  memmove({x.at} + {' + '.join(to)}, {value.at} + {' + '.join(source)}, {c_int(nbytes)});"
    )


def put_elements(frame: Frame, lines: list[str], x: Tensor, places: Tensor, values: Tensor) -> None:
    """Print the write of values to elements of a tensor, in order."""
    k, size = frame.fresh("i_"), x.dtype.itemsize
    lines += [
        f"for (int64_t {k} = 0; {k} < {c_int(product(places.shape))}; {k}++)",
        f"  memcpy({x.at} + {size} * ((const int64_t *)(const void *){places.at})[{k}], "
        f"{values.at} + {size} * {k}, {size});",
    ]
