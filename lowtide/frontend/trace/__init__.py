"""From one run of a Python function to a Function: `lt.trace`'s front end.

In: a callable and example inputs. Out: the PyTorch calls it made, as IR.

    trace     runs the callable and puts the Function together
    mode      sees every PyTorch call of the run, and says what kind of call it is
    recorder  writes ops; knows which tensor, and which number, is which value
    encode    arguments as values, indices as `Indexing` specs
    numbers   ints and floats that remember which size they were computed from
    names     a function object as the name that IR gives it
    inplace   activations that write into their input, as plain ones
    splice    a compiled function's program, where traced code calls one
    nests     nested arguments and results, taken apart and put together
    captures  tensors that were there before: parameters, buffers, constants
    places    the user's line, and warnings about what is frozen there
    active    which recorder is at work in this thread; `torch.jit.is_tracing`
    cached_calls        whether a size is about to be looked up in a cache of functools
    autograd_functions  functions with a backward of their own, as one call each
"""
