"""Programs side by side in one run: eager, torch.compile, JAX, PyTorch's own kernels, Lowtide.

`python -m benchmarks` measures, prints, writes JSON and, if asked, the README's table.

    variants   the callables of one program, by name
    worker     one measurement in a process of its own: peak memory, first call, import time
    measure    all measurements of one program, as a record
    overhead   microseconds a call, import time
    report     records to Markdown and into pages
"""
