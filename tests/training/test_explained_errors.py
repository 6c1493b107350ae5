"""Which errors of a rank are explained by another rank's report, and which are its own."""

from __future__ import annotations

import types

import pytest
import tensorflow as tf

from tf_sparse_ps import failures
from tf_sparse_ps.collectives.key_values import KeyValueStore


class Told(KeyValueStore):
    """A key-value store on which another rank has written a reason."""

    def reason(self) -> str:
        """The text of the other rank."""
        return "rank 2 ended with ValueError: no such shard"

    def write_first(self, key: str, value: str) -> None:
        """Writes nothing."""


@pytest.mark.parametrize(
    ("beside", "anothers"),
    [
        (tf.errors.UnknownError(None, None, "Horovod has been shut down"), True),
        (tf.errors.InvalidArgumentError(None, None, "the gradient of key 7 is not finite"), False),
    ],
)
def test_a_step_that_fails_with_communication_beside_it_fails_for_that_reason(
    beside: Exception, anothers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_key_values", Told())
    monkeypatch.setattr(failures, "_liveness", types.SimpleNamespace(found=None, stopped=lambda: None))
    monkeypatch.setattr(failures, "_beside", None)
    failures.failed_beside(beside)
    error = tf.errors.InvalidArgumentError(None, None, f"assertion failed: [{failures.BESIDE}] [-100]")
    explained = failures.explain(error, timeout_s=0.2)
    assert isinstance(explained, failures.RankLost if anothers else tf.errors.InvalidArgumentError)
    own_error = tf.errors.InvalidArgumentError(None, None, "shapes differ")
    assert failures.explain(own_error, timeout_s=0.2) is own_error
