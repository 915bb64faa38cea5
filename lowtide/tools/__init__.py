"""Tools around the compiler: the profiler, comparisons, the demo, and commands."""
