"""Dispose scopes: every tensor made inside is given back at a known line.

In: plain PyTorch code that runs inside `with dispose_scope():`. Out: the same results, and no
tensor left of those made inside, however they are still referred to, except those moved out.

    with lt.dispose_scope() as scope:
        h = (x @ w).relu()                  # two tensors, both the scope's
        y = scope.move_to_outer(h.sum(1))
    h.shape                                 # DisposedTensorError: made at line 2, ended at line 3

One idea a file:

    births      where a tensor was made: a code object and an instruction, a line only when asked
    bag         the tensors that one owner holds, weakly; counts them
    disposed    a handle without a tensor: what every use of it raises, and how one is made
    threads     whether another thread may be using a tensor, inside of PyTorch's C++
    watch       how tensors are seen as they are made, per thread
    ownership   what changes hands
    scope       DisposeScope: who owns what, and when it ends
    keepers     what a scope leaves alone: parameters, buffers, optimizer state, gradients
    constructed tensors made by a call of their class
    hidden      none of this is compiled by Dynamo
    functions   the same from the tensor's side
    decorate    scopes around functions, coroutines and generators
    nests       tensors in lists, dicts and dataclasses
    statistics  the account of a thread
    sequential  nn.Sequential that lets go of each input

Always: a scope holds tensors weakly, so that it never keeps alive what Python would free; disposing
drops one handle's hold on a tensor, never memory under a live alias or a tensor saved for backward.
Nothing here knows the compiler.
"""
