"""The version, for the package, files and messages."""

__version__ = "0.1.0"
