"""The one private module of AdaptDL that an example of its own imports: `_metrics_state().grad_params`."""

from .profile import current as _metrics_state

__all__ = ["_metrics_state"]
