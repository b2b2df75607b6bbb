"""The strategies all-reduce and hybrid: members of a group that steps together."""
