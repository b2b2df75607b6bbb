"""What hypothesis makes of time: nothing. A machine that is busy is no fault of a test."""

from hypothesis import HealthCheck, settings

settings.register_profile("edl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edl")
