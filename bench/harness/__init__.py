"""What the benchmarks share: servers, load, statistics of runs, tables."""
