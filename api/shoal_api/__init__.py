"""The contract that Shoal's control plane, data plane and command line share: kinds, wire messages, names. Nothing else."""
