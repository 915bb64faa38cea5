"""The memory profiler: `lt.profile()`. The files, in the order in which a profile uses them:

watch      a function mode per thread: the user's line and module of each operator
entrances  calls that no mode sees: TorchScript, autograd's engine, custom functions
patches    what is replaced in PyTorch while a profile runs
session    starts and stops the recording; returns a `Capture`
clock      converts times of the notes to PyTorch's clock
attribute  combines events and notes to operators and allocations with their source lines
timeline   live bytes over time, and the peak
rows       operators summed by line, for tables
alive      the Python tensors in allocations
holders    what holds a tensor, found by referrers and named by holder_words
leaks      tensors that outlive their step
profile    the user's `Profile`; shown by text, page, plot and chrome
batch      finds the largest batch that fits in memory: `lt.max_batch_size`
"""
