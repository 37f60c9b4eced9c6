"""What all tests share."""

from hypothesis import HealthCheck, settings

# Machines that run this are shared and noisy: how long an example takes proves nothing.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
settings.load_profile("steady")
