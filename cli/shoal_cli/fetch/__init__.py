"""Files from elsewhere, pinned by their SHA-256, kept in a cache on this machine."""
