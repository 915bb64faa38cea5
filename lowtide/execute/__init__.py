"""Runs a compiled function: the driver, regions and their caches, gradients, chunks.

driver             a Function's blocks: a region here, an op of PyTorch's there, `if` and `loop`
region             a run of ops: finds the specialisation for the live-ins
autograd_function  a region that records gradients, as one `torch.autograd.Function`
chunks             a run of ops done in parts, as a budget's plan has it
"""
