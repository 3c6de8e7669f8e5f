"""Model repositories: layout, configuration, versions, loading and unloading."""
