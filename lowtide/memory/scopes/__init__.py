"""Dispose scopes: every tensor made inside is freed at a known line.

In: plain PyTorch code that runs inside `with dispose_scope():`. Out: the same results. At the end
of the block the tensors made inside are disposed, even if variables still refer to them, except
those moved out.

    with lt.dispose_scope() as scope:
        h = (x @ w).relu()                  # two tensors, both the scope's
        y = scope.move_to_outer(h.sum(1))
    h.shape                                 # DisposedTensorError: made at line 2, ended at line 3

The files:

    allocation_sites  where a tensor was made: a code object and an instruction
    tensor_log        the tensors that one owner holds, weakly, and their counts
    disposed          turns a handle into a disposed one, whose every use raises
    threads           whether another thread may be using a tensor inside PyTorch's C++
    watch             a function mode per thread that sees each new tensor
    ownership         moves tensors between owners
    scope             DisposeScope: who owns what, and when it ends
    torch_hooks       detaches tensors of modules, optimizers and gradients from scopes
    constructed       tensors made by a call of their class
    hidden            keeps Dynamo and lt.script from compiling these functions
    functions         the methods of a scope as functions of tensors
    decorate          scopes around functions, coroutines and generators
    tensor_trees      tensors in lists, dicts and dataclasses
    statistics        the counts of a thread
    sequential        an nn.Sequential that disposes each layer's input

Invariant: a scope holds tensors weakly, so that it never keeps alive what Python would free.
Disposing drops one handle's reference to a tensor, and never frees memory under a live alias or a
tensor saved for backward. This package does not import the compiler.
"""
