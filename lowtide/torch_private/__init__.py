"""The only room that uses names which PyTorch keeps to itself."""
