"""The strategy ps: a worker that pulls from parameter servers and pushes to them."""
