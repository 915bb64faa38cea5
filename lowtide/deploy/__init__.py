"""Saving and loading: one zip of text and tensors; loading runs nothing that the file brings.

`save` writes, `load` reads; docs/save-format.md is the file written down for other readers.
"""
