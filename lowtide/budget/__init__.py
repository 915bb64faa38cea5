"""Predicts the memory of a call, and finds plans that need less memory.

dry_run       runs the driver on meta tensors
independence  the axes along which results are independent
search        the cheapest plan within a budget
"""
