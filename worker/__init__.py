"""A worker: it reads records, runs the definition, and pulls and pushes or trains in a group."""
