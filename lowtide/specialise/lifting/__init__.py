"""In-place writes as values, and loops as axes; see `inplace` and `lift`."""
