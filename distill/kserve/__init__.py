"""Teachers of other people's: models of servers that speak KServe's v2 protocol, as Triton does."""
