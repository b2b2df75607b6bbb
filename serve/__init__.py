"""What was trained, used: a checkpoint as a model, as arrays, as files for others."""
