"""A job as pods of a Kubernetes cluster, and the controller of EdlJobs."""
