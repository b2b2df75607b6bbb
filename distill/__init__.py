"""Teachers beside a job: they answer what the student is to learn of each record."""
