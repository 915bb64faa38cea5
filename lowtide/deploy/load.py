"""`lt.load`: reads a compiled function or module from a file; see docs/save-format.md.

In: a path, a binary file object or bytes. Out: a `ScriptFunction` or `ScriptModule`.

    m = lt.load("model.lt", map_location="cpu")

Invariant: nothing from the file is run, imported or unpickled. All of the file is checked before
its classes are registered in the process. A bad file raises LoadError and changes nothing.
"""

from __future__ import annotations

import os
import threading
from typing import IO, Any, Final, cast

import torch

from lowtide.api.script_function import ScriptFunction
from lowtide.api.script_module import ScriptModule, wrap
from lowtide.deploy import (
    archive,
    class_rows,
    jsontext,
    limits,
    modules,
    records,
    sources,
    storages,
    tensor_file,
)
from lowtide.deploy.adopted import adopted_attribute
from lowtide.deploy.archive import Archive
from lowtide.deploy.entry_rows import EntryReader
from lowtide.deploy.jsontext import Node
from lowtide.deploy.loaded import LoadedFunction, SavedMethod
from lowtide.deploy.torchscript import load as torchscript_load
from lowtide.deploy.values import Decoder
from lowtide.diagnostics.tracebacks import entry_point
from lowtide.errors import LoadError
from lowtide.ir import python_objects
from lowtide.memory import watching
from lowtide.runtime import packed
from lowtide.version import __version__

_MANIFEST: Final = (
    *("format", "producer", "torch", "kind", "name", "entries", "classes", "modules"),
    *("objects", "tensors", "sources"),
)
_lock = threading.Lock()
_known_classes: dict[bytes, dict[str, type]] = {}


@entry_point
def load(
    f: str | os.PathLike[str] | IO[bytes] | bytes,
    map_location: str | torch.device | dict[str, str] | None = None,
    _extra_files: dict[str, Any] | None = None,
    _restore_shapes: bool = False,
    *,
    kernels: bool = False,
) -> ScriptFunction | ScriptModule:
    """Return a compiled function or module from a file that lt.save or torch.jit.save wrote.

    `map_location`: a device for all tensors, or {saved device: device}. `_extra_files`: a dict; the
    contents of the extra files with its names are put into it, as bytes. `_restore_shapes`, as in
    torch.jit, is ignored. `kernels`: use the kernels that `lt.save(…, kernels=True)` wrote, so that
    calls like those before the save need no C compiler. They are machine code of the file, which
    nothing checks: use it for files that you trust. Without it, no code of a file is run.

    Raises LoadError, also if the kernels are of another CPU or another version of Lowtide."""
    del _restore_shapes
    place = storages.placing(map_location)
    # A dispose scope around the call does not free the model's tensors.
    with archive.open_archive(f) as opened, watching.aside():
        if archive.is_torchscript(opened.infos):
            if kernels:
                raise LoadError("a file of torch.jit.save has no kernels: omit `kernels=True`")
            return _load_old(opened, place, f, _extra_files)
        manifest = _manifest(opened)
        opened.check_names()
        info = opened.info(limits.STATE)
        with opened.open(limits.STATE) as file:
            pieces = tensor_file.read(file, info.file_size)
        extra = _extra(opened, _extra_files or {})
        found = _Loader(opened, manifest, pieces, place).load()
        if kernels:
            packed.unpack(_kernels(opened))
    if _extra_files is not None:
        _extra_files.update(extra)
    return found


def _load_old(
    opened: Archive, place: storages.Placed, f: object, wanted: dict[str, Any] | None
) -> ScriptModule:
    """Return the module of a file of torch.jit.save."""
    shown = str(cast("object", f)) if isinstance(f, str | os.PathLike) else "the archive"
    found, old = torchscript_load.load(opened, place, shown)
    if wanted is not None:
        wanted.update(old.extra_files(wanted))
    return found


def _manifest(opened: Archive) -> Node:
    raw = opened.read(limits.MANIFEST, limits.MANIFEST_BYTES)
    manifest = jsontext.parse(raw, limits.MANIFEST)
    version, producer = manifest.get("format").integer(), manifest.get("producer").text()[:100]
    if version > limits.FORMAT:
        raise LoadError(
            f"the file is of format {version}, written by {producer!r}; this is lowtide "
            f"{__version__}, which reads formats up to {limits.FORMAT}: install a newer Lowtide, "
            "at least the one that wrote the file"
        )
    if version < limits.OLDEST_FORMAT:
        raise LoadError(
            f"the file is of format {version}, written by {producer!r}, which is too old: this "
            f"Lowtide reads formats from {limits.OLDEST_FORMAT} on; save the model again"
        )
    return manifest.only(*_MANIFEST)


def _kernels(opened: Archive) -> dict[str, bytes]:
    start = limits.KERNELS
    names = [name for name in opened.infos if name.startswith(start)]
    if not names:
        raise LoadError("the file has no kernels: lt.save(…, kernels=True) writes them")
    return {n.removeprefix(start): opened.read(n, limits.KERNEL_BYTES) for n in names}


def _extra(opened: Archive, wanted: dict[str, Any]) -> dict[str, bytes]:
    names = [name for name in wanted if f"extra/{name}" in opened.infos]
    return {n: opened.read(f"extra/{n}", opened.info(f"extra/{n}").file_size) for n in names}


class _Loader:
    def __init__(
        self,
        opened: Archive,
        manifest: Node,
        pieces: dict[str, torch.Tensor],
        place: storages.Placed,
    ) -> None:
        self.archive = opened
        self.manifest = manifest
        self.entries = class_rows.from_json(manifest.get("classes"))
        self.lines = sources.lines_of(manifest.get("sources"))
        self.tensors = storages.tensors_of(manifest.get("tensors"), pieces, place)
        self.classes: dict[str, type] = {}

    def load(self) -> ScriptFunction | ScriptModule:
        kind = self.manifest.get("kind").text(("function", "module"))
        with _lock:
            key = jsontext.dump(self.manifest.get("classes").value)
            known = _known_classes.get(key)
            made = {i: records.make_class(e) for i, e in self.entries.items()}
            self.classes = known if known is not None else made
            decoder = Decoder(self.tensors, self.entries, self.classes)
            decoder.read_objects(self.manifest.get("objects"))
            tree = self._tree(kind, decoder)
            reader = EntryReader(self.archive, decoder, tree)
            checked = reader.methods(self.manifest.get("entries"))
            self._register(key)
            methods = reader.named(checked, self.classes, self.lines)
        if not tree:
            return LoadedFunction(methods[0].name, methods[0].signature, methods[0].programs)
        for method in methods:
            maker = SavedMethod(method.name, method.signature, method.programs)
            for place in method.modules:
                vars(tree[place]).setdefault("_lowtide_programs", {})[method.name] = maker
        for module in tree:
            vars(module)["_lowtide_adopts"] = adopted_attribute
        return wrap(tree[-1])

    def _tree(self, kind: str, decoder: Decoder) -> list[torch.nn.Module]:
        rows = self.manifest.get("modules")
        if kind == "module":
            return modules.decode(rows, decoder)
        if rows.items_of():
            raise rows.fail("no modules in a function")
        return []

    def _register(self, key: bytes) -> None:
        """Register the classes in this process; nothing after this can fail."""
        _known_classes[key] = self.classes
        for id_, cls in self.classes.items():
            records.remember(cls, self.entries[id_])
            python_objects.name_of(cls)
