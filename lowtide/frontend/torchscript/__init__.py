"""The front end for the code in archives of `torch.jit.save`: a small, regular subset of Python.

In: the texts in an archive's `code/` folder. Out: Python classes and functions, which
`frontend.script` compiles as it compiles a user's. Nothing of the archive's code is run by Python.
"""
