"""Reads files of torch.jit.save without torch.jit; nothing that a file brings is run."""
