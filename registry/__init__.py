"""A registry of teachers: they register under a name, for a while; students follow the name."""
