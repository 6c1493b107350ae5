"""TimedBuckets on one rank: a running function goes from profile to plan; options and refusals."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_sparse_ps as tsps
from tf_sparse_ps import _ops
from tf_sparse_ps._compat import _keras
from tf_sparse_ps.schedules import Plan, Synchronous, TimedBuckets

keras = _keras.keras
INPUTS = np.random.default_rng(1).normal(size=(28, 4)).astype("float32")
TARGETS = INPUTS.sum(1, keepdims=True)


def make_model() -> Any:
    keras.utils.set_random_seed(5)
    dense = [keras.layers.Dense(8, activation="tanh") for _ in range(3)]
    return keras.Sequential([keras.layers.Input((4,)), *dense, keras.layers.Dense(1)])


def wrapped(**options: Any) -> Any:
    """Returns an optimizer that makes its plan after one profile, however erratic the machine's timing is."""
    schedule = TimedBuckets(**{"gap_threshold": 100.0, **options})
    return tsps.DistributedOptimizer(keras.optimizers.Adam(0.01), schedule=schedule)


def batches() -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    for start in range(0, len(INPUTS), 4):
        yield tf.constant(INPUTS[start : start + 4]), tf.constant(TARGETS[start : start + 4])


def step_of(model: Any, optimizer: Any) -> Callable[..., None]:
    def step(inputs: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    return step


def fitted(**options: Any) -> Callable[[Any, Any], None]:
    def run(model: Any, optimizer: Any) -> None:
        if getattr(model, "optimizer", None) is not optimizer:
            model.compile(optimizer, "mse", **options)
        model.fit(INPUTS, TARGETS, 4, epochs=1, verbose=0, shuffle=False)

    return run


def looped(model: Any, optimizer: Any) -> None:
    """Trains by a function, then by a loop in another function that finds it traced, and by a third function."""
    if not hasattr(model, "functions_of_test"):
        inner = tf.function(step_of(model, optimizer))

        @tf.function
        def two(inputs: tf.Tensor, targets: tf.Tensor) -> None:
            for half in tf.range(2):
                inner(inputs[4 * half : 4 * half + 4], targets[4 * half : 4 * half + 4])

        model.functions_of_test = (inner, two, tf.function(step_of(model, optimizer)))
    inner, two, last = model.functions_of_test
    inner(tf.constant(INPUTS[:4]), tf.constant(TARGETS[:4]))
    for start in (4, 12):
        two(tf.constant(INPUTS[start : start + 8]), tf.constant(TARGETS[start : start + 8]))
    for start in (20, 24):
        last(tf.constant(INPUTS[start : start + 4]), tf.constant(TARGETS[start : start + 4]))


WAYS: dict[str, Callable[[Any, Any], None]] = {
    "fit": fitted(),
    "fit, 3 steps per execution": fitted(steps_per_execution=3),
    "fit, eagerly": fitted(run_eagerly=True),
    "own functions": looped,
}


def recorded(optimizer: Any) -> int:
    """Returns the number of ready times since the last call."""
    (gradient_set,) = optimizer._step_builder._started._sets.values()
    return len(_ops.ready_times(gradient_set.recorder))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.daily_cases(1)
def test_functions_are_traced_anew_once_there_is_a_plan(way: str) -> None:
    model, optimizer = make_model(), wrapped(profile_steps=4)
    WAYS[way](model, optimizer)
    plan = optimizer.schedule_report()["plan"]
    assert isinstance(plan, Plan)
    assert len(plan.gradients) == len(model.trainable_variables) == 8
    assert plan.steps >= 4
    recorded(optimizer)
    WAYS[way](model, optimizer)
    assert recorded(optimizer) == 0, "the trace with the profile's ops must not run any more"
    assert int(optimizer.iterations) == 14


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.daily_cases(1)
def test_as_long_as_there_is_no_plan_every_step_is_recorded(way: str) -> None:
    model, optimizer = make_model(), wrapped(profile_steps=40)
    WAYS[way](model, optimizer)
    WAYS[way](model, optimizer)
    state = optimizer._step_builder._started
    (gradient_set,) = state._sets.values()
    gradient_set._advance()  # evaluates the times of the last call
    assert optimizer.schedule_report() == {"plan": None, "plans": [], "profiled_steps": 13}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.daily_cases(1)
def test_one_rank_trains_as_without(way: str) -> None:
    bucketed, synchronous = make_model(), make_model()
    synchronous.set_weights(bucketed.get_weights())
    for model, schedule in ((bucketed, TimedBuckets(profile_steps=2)), (synchronous, Synchronous())):
        optimizer = tsps.DistributedOptimizer(keras.optimizers.Adam(0.01), schedule=schedule)
        WAYS[way](model, optimizer)
        WAYS[way](model, optimizer)
    for a, b in zip(bucketed.get_weights(), synchronous.get_weights(), strict=True):
        assert a.tobytes() == b.tobytes()


def test_another_set_of_gradients_is_profiled_by_itself() -> None:
    model, optimizer = make_model(), wrapped(profile_steps=3)
    optimizer.build(model.trainable_variables)
    fitted()(model, optimizer)
    model.layers[0].trainable = False
    model.compile(optimizer, "mse")
    fitted()(model, optimizer)
    first, second = optimizer.schedule_report()["plans"]
    assert (len(first.gradients), len(second.gradients)) == (8, 6)
    assert optimizer.schedule_report()["plan"] is first


def test_a_concrete_function_goes_on_and_is_warned_of() -> None:
    model, optimizer = make_model(), wrapped(profile_steps=1)
    (inputs, targets), *later_batches = batches()
    step = tf.function(step_of(model, optimizer)).get_concrete_function(inputs, targets)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in later_batches[:3]:
            step(*batch)
    assert optimizer.schedule_report()["plan"] is not None
    with pytest.warns(UserWarning, match="get_concrete_function"):
        step(inputs, targets)
    assert int(optimizer.iterations) == 4


def test_a_graph_that_cannot_be_traced_anew_is_refused() -> None:
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match=r"traced again.*TensorFlow 2"):
        _keras.CallHook(lambda: None).attach()


def test_a_given_plan_is_used_from_the_first_step() -> None:
    model, optimizer = make_model(), wrapped(profile_steps=2)
    fitted()(model, optimizer)
    plan = optimizer.schedule_report()["plan"]
    again = wrapped(plan=plan)
    fitted()(model, again)
    assert again.schedule_report() == {"plan": plan, "plans": [plan], "profiled_steps": 0}


def test_another_models_plan_is_refused_with_what_differs() -> None:
    model, optimizer = make_model(), wrapped(profile_steps=2)
    fitted()(model, optimizer)
    plan = optimizer.schedule_report()["plan"]
    other_model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="the plan has 8 gradients, the model 4"):
        fitted()(other_model, wrapped(plan=plan))
    with pytest.raises(ValueError, match="`plan` is for 3 ranks, and this job has 1"):
        wrapped(plan=plan.to_dict() | {"world_size": 3})


def test_a_schedule_survives_its_configuration() -> None:
    model, optimizer = make_model(), wrapped(profile_steps=2, gap_threshold=0.5, max_profiles=1)
    fitted()(model, optimizer)
    plan = optimizer.schedule_report()["plan"]
    for configured in (optimizer, wrapped(plan=plan)):
        copied = tsps.DistributedOptimizer.from_config(configured.get_config())
        assert copied.schedule == configured.schedule
        assert repr(copied.schedule) == repr(configured.schedule)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profile_steps": 0}, "profile_steps.*Received: 0"),
        ({"profile_steps": True}, "profile_steps.*Received: True"),
        ({"max_profiles": 1.5}, r"max_profiles.*Received: 1\.5"),
        ({"gap_threshold": 0}, "gap_threshold.*more than 0 seconds. Received: 0"),
        ({"gap_threshold": float("nan")}, "gap_threshold.*Received: nan"),
        ({"gap_threshold": "1ms"}, "gap_threshold.*Received: '1ms'"),
        ({"server": 1}, "server.*Received: 1"),
        ({"plan": 3}, "plan.*Received: 3"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TimedBuckets(**options)


def test_what_it_cannot_work_with_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"global_clipnorm.*no rank has all"):
        tsps.DistributedOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=1.0), schedule=TimedBuckets(server=True))
    tsps.DistributedOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=1.0), schedule=TimedBuckets())
    with pytest.raises(ValueError, match=r"under a tf\.distribute strategy.*merge call"):
        TimedBuckets().refuse(keras.optimizers.SGD(0.1), types.SimpleNamespace(kind="tf.distribute", size=2))
    plan = Plan((), 1, ())
    with pytest.raises(ValueError, match="has no owners"):
        TimedBuckets(plan=plan, server=True)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [kind] if kind == "GPU" else [])
    with pytest.raises(ValueError, match=r"launched.*`plan`"):
        wrapped()
    wrapped(plan=plan)


def test_a_schedule_cannot_be_changed_once_training_has_begun() -> None:
    model, optimizer = make_model(), wrapped(profile_steps=2)
    optimizer.schedule = Synchronous()
    assert optimizer.schedule == Synchronous()
    with pytest.raises(ValueError, match=r"tsps\.schedules.*Received: 'timed'"):
        optimizer.schedule = "timed"
    fitted()(model, optimizer)
    with pytest.raises(ValueError, match=r"cannot be changed once training has begun.*Received: TimedBuckets"):
        optimizer.schedule = TimedBuckets()
    assert optimizer.schedule == Synchronous()
