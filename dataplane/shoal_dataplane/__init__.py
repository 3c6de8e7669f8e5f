"""Shoal's data plane: one process in a pod that batches requests, runs models and answers over gRPC and HTTP."""
