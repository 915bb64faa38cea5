"""Exports compiled programs as C libraries: no Python, no PyTorch; see docs/deploy.md."""
