"""Jobs, servers, groups and clusters to test with, shared by tests."""
