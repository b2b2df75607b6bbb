"""Policies compared on the workloads that Pollux's authors published."""
