"""Calls a library of `lt.export_c` by ctypes; neither torch nor lowtide is imported.

python ../c/export.py FOLDER && python call.py FOLDER/libboxes.so
"""

from __future__ import annotations

import ctypes
import random
import sys


def keep(library: ctypes.CDLL, boxes: list[list[float]], scores: list[float]) -> list[int]:
    n = len(boxes)
    sizes = (ctypes.c_int64 * 2)(n, n)  # boxes.shape[0], scores.shape[0]
    library.boxes_nms_workspace_bytes.restype = ctypes.c_size_t
    n_work = library.boxes_nms_workspace_bytes(sizes)
    memory = ctypes.create_string_buffer(n_work + 64)
    work = ctypes.addressof(memory) + 64 - ctypes.addressof(memory) % 64
    flat = (ctypes.c_float * (4 * n))(*(x for box in boxes for x in box))
    kept, count = (ctypes.c_int64 * n)(), (ctypes.c_int64 * 1)()
    status = library.boxes_nms(
        sizes, flat, (ctypes.c_float * n)(*scores), ctypes.c_double(0.4), kept,
        ctypes.c_int64(n), count, None, ctypes.c_void_p(work), ctypes.c_size_t(n_work), None,
    )  # fmt: skip
    if status:
        library.boxes_strerror.restype = ctypes.c_char_p
        raise RuntimeError(library.boxes_strerror(status).decode())
    return kept[: count[0]]


if __name__ == "__main__":
    random.seed(0)
    corners = [(random.random(), random.random()) for _ in range(9)]
    found = [[x, y, x + random.random(), y + random.random()] for x, y in corners]
    print(*keep(ctypes.CDLL(sys.argv[1]), found, [random.random() for _ in found]))
