"""The command line: each family of commands, and what it shows of a job."""
