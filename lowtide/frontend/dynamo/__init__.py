"""From the graph that `torch.compile` captures to a Function: `lt.compile`'s front end.

In: the torch-level `fx.GraphModule` that a backend is handed, before AOT autograd. Out: a
`GraphProgram`, or `NotConverted` where PyTorch has to run the graph.

    convert    walks the nodes; arguments, constants and the result
    calls      one call node as ops: records, `call_torch`, `mutate`, `py.*`, `py.call`
    names      what is called: operators on numbers, functions with a public name, any other
    refusals   graphs that change PyTorch's state as they run, and so stay PyTorch's
"""
