"""Turns in-place writes into values (`inplace`), and loops into axes (`lift`)."""
