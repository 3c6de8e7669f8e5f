"""What backends of arrays share: batches to arrays and back, a configuration against a model's signature."""
