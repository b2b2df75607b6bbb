"""Many jobs on one cluster: who gets how many workers and servers, and why."""
