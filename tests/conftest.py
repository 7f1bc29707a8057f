"""How long and how randomly the properties are tried, wherever they stand.

The default is the same in every run and takes seconds. `POSTROOM_PROPERTIES=long` looks for new
counterexamples with fresh randomness, for as long as its number of examples takes.
"""

import os

from hypothesis import HealthCheck, settings

_CALM = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "quick", derandomize=True, deadline=None, max_examples=60, suppress_health_check=_CALM
)
settings.register_profile(
    "long", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=_CALM
)
settings.load_profile(os.environ.get("POSTROOM_PROPERTIES", "quick"))
