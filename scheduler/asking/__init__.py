"""Nodes that come and go: what a pool has, and three ways to ask a cloud for more or fewer."""
