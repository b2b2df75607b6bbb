"""Carriers of pulls and pushes between workers and servers: frames, connections, compiled pulls."""
