"""A cluster that is played: jobs come by a workload, run by traces, and a policy places them."""
