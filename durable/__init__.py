"""The parts of a process that survive its death: its journal, its supervisor, its loop."""
