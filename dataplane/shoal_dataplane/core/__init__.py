"""The few types that every room of the data plane shares. Imports no transport, no framework and no backend."""
