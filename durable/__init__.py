"""What survives a process that is killed: its journal, its supervisor, and the loop that decides."""
