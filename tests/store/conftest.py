"""The databases of the service's tests."""

from tests.service.conftest import postgres, store_url

__all__ = ["postgres", "store_url"]
