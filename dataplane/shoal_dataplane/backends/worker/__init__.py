"""How a model's own process is set up, by the configuration."""
