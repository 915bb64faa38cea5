"""From a call to kernels: the one place that sees every layer.

In: a Function and the caller's arguments. Out: what the Python function would have returned.

    script      ScriptFunction: the callable; when plain Python runs instead
    driver      walks a Function's blocks: a Region here, an op of PyTorch's there, `if` and `loop`
    region      a run of ops from one place of a block on: finds the Specialisation for the live-ins
    signature   what of the live-ins is constant and what a symbol
    specialise  abstract interpretation of the ops into one tensor-expression Program; `control` its
                `if` and `loop`, `lifting` loops that become axes
    hostcode    the Python text around one Executable: numbers before it, views and tuples after it
    walk        the same road on meta tensors: `explain`, `memory`, `stages`
"""
