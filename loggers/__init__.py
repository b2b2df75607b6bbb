"""Loggers: a process beside the master that writes a job's history to wandb, MLflow and others."""
