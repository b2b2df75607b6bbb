"""Snapshots of one shard: cuts, chains of them, and recovery."""
