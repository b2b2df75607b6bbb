"""Jobs seen from outside: the ones of this machine, and what all jobs have in common."""
