"""The commands: `shoal serve`, `shoal models`, `shoal infer`, `shoal digest`, `shoal quickstart`, `shoal version`."""
