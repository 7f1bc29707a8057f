"""What every driver must satisfy: subclass a suite once, give it your driver, run pytest.

Needs pytest and pytest-asyncio.
"""

import pkgutil

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__))
)
