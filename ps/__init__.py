"""A parameter server: one shard of the parameters, its connections and its snapshots."""
