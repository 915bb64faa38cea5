"""Saves and loads compiled functions and modules: a file is one zip of text and tensors.

`save` writes a file, `load` reads it and runs no code from it. docs/save-format.md describes the
format for other readers.
"""
