"""A region's ops → a Program: signatures, abstract values, lifting of loops.

signature    which parts of the live-ins are constants, and which are symbols
specialise   abstract interpretation of the ops; `control` its `if` and `loop`
lifting/     loops that become axes
"""
