"""What the command line does with jobs: start, find, follow and show them. cli.py parses only."""
