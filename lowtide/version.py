"""The version, for the package, files and messages."""

__version__ = "0.2.0"
