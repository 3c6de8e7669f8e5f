"""A model's own process: its main program, and the server's side of it."""
