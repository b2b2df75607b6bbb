"""`edl replay`: repeat a deterministic job bit for bit in one process."""
