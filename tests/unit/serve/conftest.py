import pytest
from tools.trained import Trained, train


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Trained:
    return train(tmp_path_factory.mktemp("trained"), 2)
