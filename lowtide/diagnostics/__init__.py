"""Counters, warnings, faults and debug output, for all rooms."""
