"""The private module of AdaptDL that an example of its own imports.

The example uses `_metrics_state().grad_params`.
"""

from .profile import current as _metrics_state

__all__ = ["_metrics_state"]
