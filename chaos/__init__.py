"""Faults on purpose: signals and a bad network for a running job, and the fault matrix."""
