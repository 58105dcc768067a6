"""Every peer test that asks for `path` runs through both of headwise's paths."""

import pytest


@pytest.fixture(params=["fast", "plain"])
def path(request) -> str:
    return request.param
