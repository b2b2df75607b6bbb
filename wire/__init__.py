"""Connections between processes of a job, on which tensors travel: streams, TLS, who is let in."""
