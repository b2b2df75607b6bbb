"""Teachers beside a job: they answer what the student is to learn of each record.

A job has them by `--num_teachers` (docs/distillation.md); a script of one's own asks them by
`DistillReader`.
"""

from __future__ import annotations

from .reader import DistillReader
from .teachers import Rules

__all__ = ["DistillReader", "Rules"]
