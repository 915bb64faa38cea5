"""Prints the accumulators of a nest as C: held in registers, or updated in their buffer.

In:  the nest's body and one `Accumulate`.
Out: statements before, inside and after the loops.

    t = min[j](d[i, j])  i in rows, j along lanes  a0 = inf; for j: a0 = min(a0, d); t[i] = fold(a0)
    c = min[i](d[i, j])  j is the innermost loop   for j: c[j] = min(c[j], min of the rows' d)

A minimum of floats has two versions, exact and fast. The fast one loses NaN, so it also adds up its
operands. If that sum is NaN, the kernel runs again with the exact version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lowtide.codegen.c import pointwise as pw
from lowtide.codegen.c.body import Body, Point, Scope
from lowtide.texpr.algebra import identity
from lowtide.texpr.expr import Apply, Cast
from lowtide.tile.ir import Accumulate, Buffer
from lowtide.tile.items import counts
from lowtide.vecmath.lanes import COMPARISONS

ARG = {"argmin": "min", "argmax": "max"}
_BOOL = {"max": "any", "min": "all", "sum": "any", "prod": "all"}


def accumulate(body: Body, w: Accumulate) -> None:
    """Print an accumulator into a body."""
    Accumulator(body, w).emit()


class Accumulator:
    """Prints one `Accumulate` into the scopes of a body. `hold`: the depth at which its registers
    are declared. `folds`: the vector axis is reduced, too."""

    def __init__(self, body: Body, w: Accumulate) -> None:
        self.body = body
        self.w = w
        self.buffer = w.buffer
        self.v = body.nest.vector
        self.buffer_axes = frozenset(a for a in w.buffer.axes if a in body.nest.axes)
        self.axes = frozenset(body.nest.axes)
        self.counting = counts(w.fn, w.expr)
        self.folds = self.v in w.reduced
        dtype = w.expr.dtype
        self.t = "i32" if self.counting else pw.REGISTER[dtype.name]
        self.fn = w.fn
        if self.t == "bool":
            self.fn = _BOOL.get(w.fn, w.fn)
        start = identity(ARG.get(w.fn, self.fn), dtype)
        self.neutral = "(i32v){0}" if self.counting else body.constant(start, dtype)
        self.hold = body.depth(self.buffer_axes)
        self.vectors: list[tuple[str, str]] = []  # elements of the buffer, and their new values

    def emit(self) -> None:
        if self.hold < len(self.body.order) or self.v is None or self.folds:
            self._in_registers()
        else:
            self._in_memory()

    # -- keys --

    def _key(self, point: Point) -> Point:
        buffer_axes = self.buffer_axes | {self.v} if self.folds and self.v else self.buffer_axes
        return self.body.restrict(point, buffer_axes)

    def _value(self, point: Point) -> str:
        body, w = self.body, self.w
        if self.counting:
            assert isinstance(w.expr, Cast)
            return self._mask_bool(body.value(w.expr.arg, point))
        name = body.value(w.expr, point)
        if not self.folds or not body.variant.partial:
            return name
        if self.t == "bool":
            return self._mask_bool(name)
        return body.masked(name, self.t, self.neutral)

    def _mask_bool(self, name: str) -> str:
        if not self.folds or not self.body.variant.partial:
            return name
        return (
            f"({name} | ~{self.body.lane_mask()})"
            if self.fn == "all"
            else (f"({name} & {self.body.lane_mask()})")
        )

    # -- in registers --

    def _in_registers(self) -> None:
        body = self.body
        outer, inner = body.scopes[self.hold], body.scopes[len(body.order)]
        levels = list(self._levels())
        names: dict[Point, str] = {}
        vector = "i32v" if self.t == "bool" else f"{self.t}v"
        for point in body.points(self.axes):
            key = self._key(point)
            if key not in names:
                body.serial += 1
                names[key] = f"a{body.serial}"
                outer.before.append(f"{vector} {names[key]} = {self.neutral};")
                if self.w.fn in ARG:
                    outer.before.append(f"i32v {names[key]}_at = {{0}};")
            acc = names[key]
            for label, scope in levels:
                part = f"{names[key]}_{label}"
                start = f"{vector} {part} = {self.neutral};"
                if start not in scope.before:
                    scope.before.append(start)
                    scope.after.insert(0, f"{acc} += {part};")
                acc = part
            self._update(acc, point, inner.before)
        merged: dict[Point, list[str]] = {}
        for key, name in names.items():
            merged.setdefault(body.restrict(key, self.buffer_axes), []).append(name)
        for key, group in merged.items():
            self._write_back(key, group, outer.after)
        self._write_vectors(outer.after)

    def _levels(self) -> Iterator[tuple[str, Scope]]:
        """Yield the scopes that have a partial sum of their own. Only float sums have some, at the
        loops and blocks that the schedule has chosen inside the accumulator's own loop."""
        if self.fn != "sum" or self.t not in ("f32", "f64"):
            return
        order, parts = self.body.order, self.body.nest.parts
        for d in range(self.hold, len(order)):
            if d > self.hold and order[d] in parts:
                yield f"{d}", self.body.scopes[d]
            if d in self.body.blocks:
                yield f"b{d}", self.body.blocks[d]

    def _update(self, acc: str, point: Point, lines: list[str]) -> None:
        w = self.w
        if w.fn in ARG:
            self._update_arg(acc, point, lines)
            return
        if self._is_product() and not (self.folds and self.body.variant.partial):
            assert isinstance(w.expr, Apply)
            x, y = (self.body.value(a, point) for a in w.expr.args)
            lines.append(f"{acc} = {self.body.names.use(f'fma_{self.t}')}({x}, {y}, {acc});")
            return
        if (step := self._counted(acc, point)) is not None:
            lines.append(f"{acc} = {step};")
            return
        value = self._value(point)
        self._watch(value)
        lines.append(f"{acc} = {self._combine(acc, value)};")

    def _counted(self, acc: str, point: Point) -> str | None:
        """Return the C of `acc += (a < b)` by one helper, for a sum that counts where a comparison
        of f32 holds and whose lanes are all used; None for other sums."""
        e = self.w.expr
        if not self.counting or not isinstance(e, Cast) or not isinstance(e.arg, Apply):
            return None
        test = e.arg
        narrow = test.fn in COMPARISONS and test.args[0].dtype.name in ("f32", "bf16", "f16")
        if not narrow or (self.folds and self.body.variant.partial):
            return None
        a, b = (self.body.value(x, point) for x in test.args)
        return f"{self.body.names.use(f'count_{test.fn}_f32')}({acc}, {a}, {b})"

    def _is_product(self) -> bool:
        e = self.w.expr
        return (
            self.fn == "sum"
            and isinstance(e, Apply)
            and e.fn == "mul"
            and e.dtype.is_float
            and e not in self.body.nest.reads
        )

    def _watch(self, value: str) -> None:
        """Add an operand of a float minimum or maximum to the sum that detects NaN."""
        if self.w.fn in ("min", "max", *ARG) and self.w.expr.dtype.is_float:
            if self.body.variant.partial and self.v is not None:
                use = self.body.names.use(f"select_{self.t}")
                value = f"{use}({self.body.lane_mask()}, {value}, ({self.t}v){{0}})"
            self.body.watched.setdefault(self.t, {})[value] = None

    def _combine(self, a: str, b: str) -> str:
        """Return the C for `fn` of two vectors."""
        use, t = self.body.names.use, self.t
        if self.counting:
            return f"{a} - {b}"
        if self.fn in ("any", "all"):
            return f"{a} {'|' if self.fn == 'any' else '&'} {b}"
        if self.fn in ("sum", "prod"):
            return f"{a} {'+' if self.fn == 'sum' else '*'} {b}"
        whole = use(f"{self.fn}imum_{t}")
        if t not in ("f32", "f64"):
            return f"{whole}({a}, {b})"
        if self.body.variant.alone:
            return f"{whole}({a}, {b})"
        return f"{use(f'fast{self.fn}_{t}')}({a}, {b})"

    def _update_arg(self, acc: str, point: Point, lines: list[str]) -> None:
        body, use, t = self.body, self.body.names.use, self.t
        value = self._value(point)
        self._watch(value)
        axis = self.w.reduced[0]
        here = f"(i32v){{0}} + (int32_t)({body.offset(axis, point)})"
        if axis is self.v:
            here += f" + {body.iota('i32')}"
        sign = "<" if self.w.fn == "argmin" else ">"
        body.serial += 1
        m = f"m{body.serial}"
        test = f"{value} {sign} {acc}"
        exact = f"(({test}) | (({value} != {value}) & ({acc} == {acc})))"
        if t == "bool":
            test = f"~{value} & {acc}" if sign == "<" else f"{value} & ~{acc}"
            lines.append(f"i32v {m} = {test};")
        elif t in ("f32", "f64"):
            chosen = exact if body.variant.alone else f"({test})"
            lines.append(f"i32v {m} = {_as_mask(chosen, t)};")
        else:
            lines.append(f"i32v {m} = {_as_mask(f'({test})', t)};")
        lines.append(f"{acc} = {use(f'select_{t}')}({m}, {value}, {acc});")
        lines.append(f"{acc}_at = {use('select_i32')}({m}, {here}, {acc}_at);")

    # -- back to the buffer --

    def _write_back(self, key: Point, group: list[str], lines: list[str]) -> None:
        body = self.body
        place = body.place(self.buffer, key)
        if self.w.fn in ARG:
            self._write_back_arg(key, group, place, lines)
            return
        first = group[0]
        for other in group[1:]:
            joined = f"{first} + {other}" if self.counting else self._combine(first, other)
            lines.append(f"{first} = {joined};")
        if self.folds or self.v is None:
            h = self._folded(first) if self.folds else f"{first}[0]"
            lines.append(f"{_fold_into(self.fn, place, h, self.t)}")
            return
        value = first
        if self.counting:
            value = f"{body.names.use('cast_i32_i64')}({first})"
        self.vectors.append((place, value))

    def _write_vectors(self, lines: list[str]) -> None:
        """Combine the vectors with those of the buffer. In the first tiles the buffer has no values
        yet: store the vectors."""
        adds = [self._into_vector(place, value) for place, value in self.vectors]
        if self.w.first is None:
            lines.extend(adds)
            return
        tests = " && ".join(f"b_{self.body.names.axis(a)} == 0" for a in self.w.first)
        stores = [self._access(self.buffer, p)[1](self._as_stored(x)) for p, x in self.vectors]
        both = [f"if ({tests}) {{", *stores, "} else {", *adds, "}"]
        lines.extend(both if tests else stores)

    def _folded(self, acc: str) -> str:
        use, t = self.body.names.use, self.t
        if self.counting:
            return f"{use('hsum_i64')}({use('cast_i32_i64')}({acc}))"
        if self.fn in ("any", "all"):
            return f"-{use('hor_bool' if self.fn == 'any' else 'hand_bool')}({acc})"
        if self.fn in ("sum", "prod"):
            return f"{use(f'h{self.fn}_{t}')}({acc})"
        return f"{use(f'h{self.fn}_{t}')}({acc})"

    def _into_vector(self, place: str, value: str) -> str:
        """Return the C of buffer[…] = fn(buffer[…], value), lane by lane."""
        load, store = self._access(self.buffer, place)
        if self.counting:
            return store(f"{load} + {value}")
        return store(self._combine(load, self._as_stored(value)))

    def _as_stored(self, value: str) -> str:
        """Return a vector in the dtype of the buffer."""
        to = self.buffer.dtype.name
        if self.counting or to == self.t:
            return value
        return f"{self.body.names.use(f'cast_{self.t}_{to}')}({value})"

    def _access(self, buffer: Buffer, place: str) -> tuple[str, Callable[[str], str]]:
        """Return the C that loads a vector of the buffer, and what prints the C of a store."""
        body, use = self.body, self.body.names.use
        kind = "i32" if buffer.dtype.name == "bool" else buffer.dtype.name
        n = "lanes" if body.variant.partial else str(body.names.lanes)
        if buffer.last is not self.v:
            step = body.stride(buffer, self.v)
            load = f"{use(f'load_strided_{kind}')}(&{place}, {step}, {n})"
            name = use(f"store_strided_{kind}")
            return load, lambda x: f"{name}(&{place}, {step}, {x}, {n});"
        if body.variant.partial and buffer.last in buffer.whole:
            load = f"{use(f'load_part_{kind}')}(&{place}, lanes)"
            name = use(f"store_part_{kind}")
            return load, lambda x: f"{name}(&{place}, {x}, lanes);"
        load = f"{use(f'load_{kind}')}(&{place})"
        name = use(f"store_{kind}")
        return load, lambda x: f"{name}(&{place}, {x});"

    def _write_back_arg(self, key: Point, group: list[str], place: str, lines: list[str]) -> None:
        body, use, t = self.body, self.body.names.use, self.t
        twin = self.buffer.twin
        assert twin is not None
        best = body.place(twin, key)
        base = f"b_{body.names.axis(self.w.reduced[0])}"
        if self.folds or self.v is None:
            count = body.names.lanes if self.folds else 1
            for acc in group:
                lines.append(
                    f"lt_{self.w.fn}_{t}((const void *)&{acc}, (const void *)&{acc}_at, {count}, "
                    f"{base}, &{best}, &{place});"
                )
            body.names.use(f"@{self.w.fn}_{t}")
            return
        for acc in group:
            at = f"{use('cast_i32_i64')}({acc}_at) + {base}"
            lines.extend(self._best_of_buffer(acc, at, key))

    def _best_of_buffer(self, value: str, at: str, key: Point) -> list[str]:
        """Return the C of argmin or argmax that replaces a value and its index in the buffers, in
        each lane where the new value is better."""
        body, use, t = self.body, self.body.names.use, self.t
        twin = self.buffer.twin
        assert twin is not None
        load_best, store_best = self._access(twin, body.place(twin, key))
        load_at, store_at = self._access(self.buffer, body.place(self.buffer, key))
        sign = "<" if self.w.fn == "argmin" else ">"
        body.serial += 1
        m, old = f"m{body.serial}", f"o{body.serial}"
        vector = "i32v" if t == "bool" else f"{t}v"
        test = f"({value} {sign} {old})"
        if t == "bool":
            test = f"(~{value} & {old})" if sign == "<" else f"({value} & ~{old})"
        elif t in ("f32", "f64"):
            test = f"({test} | (({value} != {value}) & ({old} == {old})))"
        return [
            f"{vector} {old} = {load_best};",
            f"i32v {m} = {_as_mask(test, t)};",
            store_best(f"{use(f'select_{t}')}({m}, {value}, {old})"),
            store_at(f"{use('select_i64')}({m}, {at}, {load_at})"),
        ]

    # -- in the buffer itself --

    def _in_memory(self) -> None:
        body = self.body
        lines = body.scopes[len(body.order)].before
        if self.w.fn in ARG:
            axis = self.w.reduced[0]
            for point in body.points(self.axes):
                value = self._value(point)
                self._watch(value)
                place = f"(i64v){{0}} + ({body.coordinate(axis, point)})"
                lines.append("{")
                lines.extend(self._best_of_buffer(value, place, self._key(point)))
                lines.append("}")
            return
        parts: dict[Point, str] = {}
        for point in body.points(self.axes):
            key = self._key(point)
            value = self._value(point)
            self._watch(value)
            if self.counting:
                value = f"-{value}"
            if key not in parts:
                body.serial += 1
                parts[key] = f"a{body.serial}"
                vector = "i32v" if self.t == "bool" else f"{self.t}v"
                lines.append(f"{vector} {parts[key]} = {value};")
            else:
                joined = (
                    f"{parts[key]} + {value}" if self.counting
                    else self._combine(parts[key], value)
                )  # fmt: skip
                lines.append(f"{parts[key]} = {joined};")
        for key, name in parts.items():
            value = f"{body.names.use('cast_i32_i64')}({name})" if self.counting else name
            lines.append(self._into_vector(body.place(self.buffer, key), value))


def _as_mask(comparison: str, t: str) -> str:
    return comparison if t in ("f32", "i32") else f"__builtin_convertvector({comparison}, i32v)"


def _fold_into(fn: str, place: str, h: str, t: str) -> str:
    """Return a scalar statement: place = fn(place, h)."""
    if fn in ("sum", "prod"):
        return f"{place} {'+' if fn == 'sum' else '*'}= {h};"
    if fn in ("any", "all"):
        return f"{place} {'|' if fn == 'any' else '&'}= {h};"
    sign = "<" if fn == "min" else ">"
    test = f"h {sign} {place}" + (" || h != h" if t in ("f32", "f64") else "")
    return f"{{ __auto_type h = {h}; if ({test}) {place} = h; }}"


def arg_fold(fn: str, t: str) -> str:
    """Return a C function that folds the best value of each lane into one scalar. Of equal values
    the one with the smallest index wins."""
    c = pw.SCALAR[t]
    sign = "<" if fn == "argmin" else ">"
    better = f"(x {sign} b || (x != x && b == b))"
    same = "((x == b || (x != x && b != b)) && at[q] < k)"
    return (
        f"LT_CALLED void lt_{fn}_{t}(const {c} *best, const int32_t *at, int n, int64_t base,\n"
        f"                           {c} *to, int64_t *to_at) {{\n"
        f"  {c} b = best[0]; int64_t k = at[0];\n"
        f"  for (int q = 1; q < n; q++) {{ {c} x = best[q]; "
        f"if ({better} || {same}) {{ b = x; k = at[q]; }} }}\n"
        f"  {c} x = b; b = *to; k += base;\n"
        f"  const int sooner = (x == b || (x != x && b != b)) && k < *to_at;\n"
        f"  if ({better} || sooner) {{ *to = x; *to_at = k; }}\n}}\n"
    )
