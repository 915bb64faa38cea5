"""The memory profiler: `lt.profile()`. Files in the order in which a profile passes them.

watch      a mode per thread: which line, which module calls an operator
follow     PyTorch's own recording, carried into threads
patches    what is replaced in PyTorch while a profile runs, and put back after
session    starts and stops the three above; out comes a `Capture`
attribute  events and notes become operators and allocations, each with its source line
timeline   what is live when: the peak, and the curve
rows       operators summed by line, for tables
holders    who holds a tensor that is alive; leaks: what outlives its step
profile    what the user sees; text, page, plot, trace: how it is shown
batch      profiles steps of training to find the largest batch that fits: `lt.max_batch_size`
"""
