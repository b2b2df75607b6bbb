"""Teachers beside a job: they answer what the student is to learn of each record.

A job has them by `--num_teachers` (docs/distillation.md); a script of one's own asks them by
`DistillReader`. `view_seeds` is for a `feed` that augments.
"""

from __future__ import annotations

from ..data.views import view_seeds
from .question import Rules
from .reader import DistillReader

__all__ = ["DistillReader", "Rules", "view_seeds"]
