"""Tools around the compiler: profiler, comparisons, the demo, the commands of the command line."""
