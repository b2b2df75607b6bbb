"""Where replicas run: the interface of all runtimes, and processes of this machine."""
