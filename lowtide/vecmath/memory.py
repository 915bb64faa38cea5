"""Loads and stores: whole vectors, the first n lanes, and strided ones, for every dtype in memory.

In: nothing. Out: `Snippet`s load_f32(p), load_part_f32(p, n), load_strided_f32(p, stride, n), and
stores.
Invariant: no address beyond the n-th element is touched; other lanes read as 0; 0 <= n <= lanes;
strides count elements. bf16 and f16 are converted to f32v and back; bool is a byte 0 or 1 in memory
and a mask (i32v) in a register.
"""

from __future__ import annotations

from lowtide.vecmath.snippet import Layout, Snippet
from lowtide.vecmath.types import ITEMSIZE, SCALARS

# dtype in memory: (bits as loaded, value in a register, load conversion, store conversion)
_MEMORY = {
    "f32": ("f32", "f32v", "{}", "{}"),
    "f64": ("f64", "f64v", "{}", "{}"),
    "i32": ("i32", "i32v", "{}", "{}"),
    "i64": ("i64", "i64v", "{}", "{}"),
    "u8": ("u8", "u8v", "{}", "{}"),
    "bf16": ("u16", "f32v", "cast_bf16_f32({})", "cast_f32_bf16({})"),
    "f16": ("u16", "f32v", "cast_f16_f32({})", "cast_f32_f16({})"),
    "bool": ("u8", "i32v", "cast_u8_bool({})", "cast_bool_u8({})"),
}
# raw dtype: (x86 builtin's infix, vector type that it takes, letters)
_MASKED = {
    "f32": ("ups", "f32v"),
    "f64": ("upd", "f64v"),
    "i32": ("dqusi", "i32v"),
    "i64": ("dqudi", "i64v"),
    "u16": ("dquhi", "i16v"),
    "u8": ("dquqi", "chars"),
}


def _feature(raw: str, vector_bytes: int) -> str:
    needs = ["defined(__AVX512F__)"] if vector_bytes == 64 else ["defined(__AVX512VL__)"]
    if ITEMSIZE[raw] < 4:
        needs.append("defined(__AVX512BW__)")
    return " && ".join(needs)


def _masked(raw: str, layout: Layout, call: str) -> tuple[str, str] | None:
    """Return (condition, builtin name) of a masked load or store; None where none has this size."""
    size = layout.lanes * ITEMSIZE[raw]
    if size not in (16, 32, 64) or layout.lanes > 16:
        return None
    return _feature(raw, size), f"__builtin_ia32_{call}{_MASKED[raw][0]}{size * 8}_mask"


def _chars(raw: str, layout: Layout) -> str:
    """Return a typedef for gcc's byte builtins. They take vectors of plain `char`, which C
    distinguishes from `signed char` and `unsigned char`."""
    if raw != "u8":
        return ""
    return f"  typedef char chars __attribute__((vector_size({layout.lanes})));\n"


def _raw_load_part(raw: str) -> Snippet:
    def text(layout: Layout) -> str:
        head = f"{raw}v rawload_part_{raw}(const void *p, int n) {{"
        lanes = [f"n > {i} ? s[{i}] : 0" for i in range(layout.lanes)]
        plain = f"  const {raw}_s *s = p;\n  return ({raw}v){{{', '.join(lanes)}}};"
        plain = plain.replace(f"{raw}_s", SCALARS[raw])
        builtin = _masked(raw, layout, "load")
        if builtin is None:
            return f"{head}\n{plain}\n}}"
        vector = _MASKED[raw][1]
        call = (
            _chars(raw, layout)
            + f"  return ({raw}v){builtin[1]}((const void *)p, ({vector}){{0}}, (1 << n) - 1);"
        )
        return f"{head}\n#if {builtin[0]}\n{call}\n#else\n{plain}\n#endif\n}}"

    return Snippet(name=f"rawload_part_{raw}", text=text, splits=False)


def _raw_store_part(raw: str) -> Snippet:
    def text(layout: Layout) -> str:
        head = f"void rawstore_part_{raw}(void *p, {raw}v v, int n) {{"
        lanes = [f"if (n > {i}) s[{i}] = v[{i}];" for i in range(layout.lanes)]
        plain = f"  {SCALARS[raw]} *s = p;\n  " + "\n  ".join(lanes)
        builtin = _masked(raw, layout, "store")
        if builtin is None:
            return f"{head}\n{plain}\n}}"
        # gcc joins the store with the extraction of half a register, and of that instruction
        # (vextracti32x8) lanes that are not stored may fault, too.
        apart = '  __asm__("" : "+v"(v));\n' if layout.lanes * ITEMSIZE[raw] < 64 else ""
        call = (
            _chars(raw, layout)
            + apart
            + f"  {builtin[1]}((void *)p, ({_MASKED[raw][1]})v, (1 << n) - 1);"
        )
        return f"{head}\n#if {builtin[0]}\n{call}\n#else\n{plain}\n#endif\n}}"

    return Snippet(name=f"rawstore_part_{raw}", text=text, splits=False)


def _accesses(dtype: str) -> list[Snippet]:
    raw, vector, decode, encode = _MEMORY[dtype]
    scalar = SCALARS[raw]

    def strided_load(layout: Layout) -> str:
        items = [f"n > {i} ? p[{i} * stride] : 0" for i in range(layout.lanes)]
        value = decode.format(f"(({raw}v){{{', '.join(items)}}})")
        head = f"{vector} load_strided_{dtype}(const {scalar} *p, int64_t stride, int n)"
        return f"{head} {{\n  return {value};\n}}"

    def strided_store(layout: Layout) -> str:
        items = "\n  ".join(f"if (n > {i}) p[{i} * stride] = r[{i}];" for i in range(layout.lanes))
        head = f"void store_strided_{dtype}({scalar} *p, int64_t stride, {vector} v, int n)"
        return f"{head} {{\n  {raw}v r = {encode.format('v')};\n  {items}\n}}"

    whole = decode.format(f"*(const {raw}v_u *)p")
    texts = {
        f"load_{dtype}": f"{vector} load_{dtype}(const {scalar} *p) {{ return {whole}; }}",
        f"store_{dtype}": f"void store_{dtype}({scalar} *p, {vector} v) "
        f"{{ *({raw}v_u *)p = {encode.format('v')}; }}",
        f"load_part_{dtype}": f"{vector} load_part_{dtype}(const {scalar} *p, int n) {{\n"
        f"  return {decode.format(f'rawload_part_{raw}(p, n)')};\n}}",
        f"store_part_{dtype}": f"void store_part_{dtype}({scalar} *p, {vector} v, int n) {{\n"
        f"  rawstore_part_{raw}(p, {encode.format('v')}, n);\n}}",
    }
    fixed_texts = [Snippet(name=n, text=lambda _, t=t: t) for n, t in texts.items()]
    return [
        *fixed_texts,
        Snippet(name=f"load_strided_{dtype}", text=strided_load),
        Snippet(name=f"store_strided_{dtype}", text=strided_store),
    ]


SNIPPETS: list[Snippet] = [
    *map(_raw_load_part, _MASKED),
    *map(_raw_store_part, _MASKED),
    *(s for dtype in _MEMORY for s in _accesses(dtype)),
]
