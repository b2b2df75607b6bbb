"""Runtimes of replicas: the interface of all, and processes of this machine."""
