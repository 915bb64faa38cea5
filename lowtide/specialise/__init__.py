"""A region's ops → a Program: signatures, abstract values, lifting of loops.

signature    what of the live-ins is constant and what a symbol
specialise   abstract interpretation of the ops; `control` its `if` and `loop`
lifting/     loops that become axes
"""
