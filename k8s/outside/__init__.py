"""Jobs of a cluster seen from outside: submitted, listed, followed, ended."""
