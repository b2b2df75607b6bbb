"""Modules that every other folder may import, and that import no other folder."""
