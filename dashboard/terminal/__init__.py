"""Jobs in a terminal, of the same snapshots as the page."""
