"""`shoal quickstart`: real models, fetched, served and asked, in one command."""
