"""A call under a budget: which runs of ops are done in chunks, and how that is found; see
docs/ARCHITECTURE.md."""
