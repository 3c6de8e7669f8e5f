"""Run a formed batch: one interface, one file each."""
