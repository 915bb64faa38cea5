"""Runs programs in chunks that fit a budget: in this process, on executors, and on Dask."""
