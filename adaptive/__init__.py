"""The adaptive API: a training script of one's own that survives other numbers of replicas."""
