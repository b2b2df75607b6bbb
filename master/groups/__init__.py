"""The holders of a job's parameters: servers, the workers of a group, or both of them."""
