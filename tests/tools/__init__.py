"""What tests share: jobs, servers, groups and clusters to test with."""
