"""Shoal's control plane: reads the kinds, plans what they mean, and keeps it so."""
