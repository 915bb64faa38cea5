"""The only room that uses names which PyTorch keeps to itself; nothing of the compiler is here.

    autograd       the engine's nodes, hooks and errors
    dispatch       dispatch keys, schemas and kinds of ops, which convolution is run
    graph_capture  what `torch.compile` captures, and which functions it skips
    modes          modes of functions and of dispatch, transforms of torch.func
    names          private names that programs write, as text
    profiler       PyTorch's recording of operators and of memory
    pytree         nests of registered classes
    tensors        versions, storages, handles
    torch_jit      marks and schemas of torch.jit
    torch_state    whether a call runs as plain Python

What is called often is PyTorch's own function under a plain name: no frame lies between.
"""
