"""The books of a job: who does which records, and how far each task is applied. Pure."""
