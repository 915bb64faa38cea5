"""Dispose scopes: every tensor made inside is given back at a known line.

In: plain PyTorch code that runs inside `with dispose_scope():`. Out: the same results. The tensors
made inside are disposed, whatever still refers to them, except those moved out.

    with lt.dispose_scope() as scope:
        h = (x @ w).relu()                  # two tensors, both the scope's
        y = scope.move_to_outer(h.sum(1))
    h.shape                                 # DisposedTensorError: made at line 2, ended at line 3

One idea a file:

    allocation_sites  where a tensor was made: a code object and an instruction
    tensor_log        the tensors that one owner holds, weakly, and their counts
    disposed          a handle without a tensor: what its use raises, and how one is made
    threads           whether another thread may be using a tensor inside PyTorch's C++
    watch             sees tensors as they are made, per thread
    ownership         moves tensors between owners
    scope             DisposeScope: who owns what, and when it ends
    torch_hooks       tensors that are not a scope's: of modules, optimizers, gradients
    constructed       tensors made by a call of their class
    hidden            keeps Dynamo from compiling all this
    functions         the same functions from the tensor's side
    decorate          scopes around functions, coroutines and generators
    tensor_trees      tensors in lists, dicts and dataclasses
    statistics        the account of a thread
    sequential        nn.Sequential that releases each input

Invariant: a scope holds tensors weakly, so that it never keeps alive what Python would free.
Disposing drops one handle's reference to a tensor, and never frees memory under a live alias or a
tensor saved for backward. Nothing here knows the compiler.
"""
