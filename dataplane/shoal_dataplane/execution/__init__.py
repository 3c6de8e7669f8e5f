"""Where a formed batch runs: in the loop, on a thread, in a process of its own."""
