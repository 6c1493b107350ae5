"""Every private name of docs/private-names.md exists and behaves as the library needs it."""

from __future__ import annotations

import ast
import http.client
import importlib
import inspect
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from fork_server import run_forked

from tf_sparse_ps._compat import (
    _keras,
    _keras_fit,
    _keras_graphs,
    _keras_hooks,
    _keras_inputs,
    _keras_state,
    _keras_stores,
    _tensorflow,
)
from tf_sparse_ps.layers import saving

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "tf_sparse_ps"
KERAS_2 = pytest.mark.skipif(_keras.IS_KERAS_3, reason="a name of Keras 2")
KERAS_3 = pytest.mark.skipif(not _keras.IS_KERAS_3, reason="a name of Keras 3")
PRIVATE_MODULES = re.compile(r"tensorflow\.python|keras\.src|horovod\.(?:common|runner)")
keras = _keras.keras


def small_model() -> Any:
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


def test_inputs_of_models_and_their_users_are_found() -> None:
    model = small_model()
    (tensor,) = _keras_graphs.inputs_of(model)
    layer = _keras_graphs.input_layer_of(tensor)
    assert isinstance(layer, keras.layers.InputLayer), "tsps.convert could not make inputs (tensor._keras_history)"
    users = _keras_graphs.users_of(layer)
    assert users == [model.layers[1]], "float inputs of ids would stay floats (Layer._outbound_nodes)"
    assert _keras_graphs.is_plain_model(model)
    assert _keras_graphs.is_plain_model(keras.Sequential())
    assert not _keras_graphs.is_plain_model(type("Model", (keras.Model,), {})())


def test_a_seed_shows_in_the_context_and_is_anew_each_time() -> None:
    keras.utils.set_random_seed(3)
    seed, mark = _keras.random_seed()
    assert seed == "3", "tables would not follow keras.utils.set_random_seed (context()._seed)"
    keras.utils.set_random_seed(3)
    seed_again, other_mark = _keras.random_seed()
    assert seed_again == "3"
    assert other_mark is not mark, (
        "a model that is made again after the same seed would have other values (context()._rng)"
    )


def test_determinism_is_seen() -> None:
    assert not _tensorflow.is_deterministic()
    code = (
        "import tensorflow as tf; tf.config.experimental.enable_op_determinism(); "
        "from tf_sparse_ps._compat import _tensorflow; assert _tensorflow.is_deterministic()"
    )
    done = run_forked(code)
    assert done.returncode == 0, done.stderr


def test_a_local_variable_is_not_mirrored() -> None:
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        variable = _keras.local_variable(1.0, "float32", "local")
    assert not isinstance(variable, tf.distribute.DistributedValues), "weights of ranks would be mirrored"
    assert isinstance(variable, _keras.ResourceVariable)


def test_xla_is_seen_while_it_is_traced() -> None:
    under_xla = []

    @tf.function(jit_compile=True)
    def with_xla(x: tf.Tensor) -> tf.Tensor:
        under_xla.append(_keras.traced_with_jit_compile())
        return x + 1.0

    with_xla.get_concrete_function(tf.TensorSpec([], tf.float32))
    assert under_xla == [True], "a lookup in a function with jit_compile=True would fail without an explanation"
    tf.function(lambda x: under_xla.append(_keras.traced_with_jit_compile())).get_concrete_function(tf.zeros([]))
    assert under_xla == [True, False]


def test_recording_tapes_are_seen_eagerly_and_in_functions() -> None:
    recording = []

    def look(x: tf.Tensor) -> tf.Tensor:
        recording.append(_tensorflow.is_recording())
        return x

    look(tf.constant(1.0)), tf.function(look).get_concrete_function(tf.TensorSpec([]))
    assert recording == [False] * 2, "an evaluation with an id out of range would return zeros"
    recording.clear()

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.function(look)(look(x))
        look(x)
        return tape.gradient(y, x)

    with tf.GradientTape():
        look(tf.constant(1.0))
    step.get_concrete_function(tf.TensorSpec([]))
    assert recording == [True, True, True, False], "an id out of range on one rank would end the step of that rank only"


def test_functions_of_datasets_are_seen_while_they_are_traced() -> None:
    in_dataset = []

    def look(x: tf.Tensor) -> tf.Tensor:
        in_dataset.append(_tensorflow.traced_for_dataset())
        return x

    ids = tf.data.Dataset.range(3)
    ids.map(look).map(tf.function(look), num_parallel_calls=2).filter(lambda x: look(x) > 0)
    ids.flat_map(lambda x: tf.data.Dataset.from_tensors(x).map(look)).interleave(
        lambda x: tf.data.Dataset.range(look(x))
    )
    assert in_dataset == [True] * 5
    in_dataset.clear()
    look(tf.constant(1)), tf.function(lambda x: tf.cond(x > 0, lambda: look(x), lambda: x))(tf.constant(1))
    assert in_dataset == [False] * 2


def test_the_context_tells_whether_operations_have_run_and_processes_are_connected() -> None:
    program = (
        "import tensorflow as tf; from tf_sparse_ps._compat import _tensorflow as ours\n"
        "print(ours.has_begun(), ours.connects_processes())\n"
        "tf.zeros([])\n"
        "print(ours.has_begun(), ours.connects_processes())\n"
        "ours.context.context()._collective_leader = '/job:worker/replica:0/task:0'\n"
        "print(ours.connects_processes())"
    )
    completed = run_forked(program)
    assert completed.stdout.split() == ["False", "False", "True", "False", "True"], (
        "tsps.init() would let TensorFlow connect workers too late (context()._context_handle), or twice "
        "(context()._collective_leader)"
    )
    assert inspect.signature(type(_tensorflow.context.context()).configure_collective_ops).parameters, (
        "TensorFlow no longer has the method that sets context()._collective_leader"
    )


def test_a_strategy_keeps_the_heartbeat_timeout() -> None:
    program = (
        "import tensorflow as tf; from tf_sparse_ps._compat import _tensorflow as ours\n"
        "ours.set_heartbeat_timeout(tf.train.ClusterSpec({'worker': ['localhost:1', 'localhost:2']}), 640.0)\n"
        "config = ours.context.context().config.experimental.coordination_config\n"
        "print(config.heartbeat_timeout_in_ms, config.service_leader, config.coordinated_job_list[0].num_tasks)"
    )
    assert run_forked(program).stdout.split() == ["640000", "/job:worker/replica:0/task:0", "2"]
    module = inspect.getmodule(tf.distribute.MultiWorkerMirroredStrategy)
    assert module is not None
    assert "coordination_service is None" in inspect.getsource(module), (
        "the strategy would set TensorFlow's heartbeats to 10 s again (context().coordination_service)"
    )


_FAIL_TOGETHER = """
import faulthandler, threading, time
import tensorflow as tf
from tensorflow.python.eager import core
from tf_sparse_ps.schedules.communication_threads import CommunicationThreads

construct = core._NotOkStatusException.__init__

def slowly(*args):
    time.sleep(0.2)  # the thread loses the GIL
    construct(*args)

core._NotOkStatusException.__init__ = slowly
faulthandler.dump_traceback_later({limit_s}, exit=True)  # needs no GIL
{prepare}
zero, errors = tf.constant(0), []

def fail():
    try:
        raise KeyError  # while it is handled, Python 3.11 makes exceptions at once, as later versions always do
    except KeyError:
        try:
            tf.raw_ops.FloorDiv(x=1, y=zero)
        except tf.errors.InvalidArgumentError as error:
            errors.append(error)

threads = [threading.Thread(target=fail) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
try:
    tf.function(lambda: 1 // zero)()
except tf.errors.InvalidArgumentError as error:
    errors.append(error)
print(*[(error.error_code, "zero" in error.message, dict(error.experimental_payloads)) for error in errors])
"""


@pytest.mark.parametrize("mended", [True, False])
def test_operations_of_several_threads_fail_at_the_same_time(mended: bool) -> None:
    one = "[tf.TensorSpec([], tf.int64)]"
    start = f"CommunicationThreads({one}, {one}, 1, lambda message: message, lambda message, _: message).start()"
    prepare, limit_s = (start, 300) if mended else ("", 3)
    completed = run_forked(_FAIL_TOGETHER.format(prepare=prepare, limit_s=limit_s))
    if mended:
        assert completed.stdout == " ".join(["(3, True, {})"] * 5) + "\n"
    else:  # the control; when it fails, TensorFlow no longer needs the mend
        assert "(3, True, {})" not in completed.stdout
        assert "Timeout (0:00:03)!" in completed.stdout + completed.stderr


def test_the_body_of_a_called_function_is_found() -> None:
    inner = tf.function(lambda x: x * 2.0)
    outer = tf.function(lambda x: inner(x)).get_concrete_function(tf.TensorSpec([], tf.float32))
    bodies = [_keras.body_of_call(op) for op in outer.graph.get_operations()]
    called_bodies = [body for body in bodies if body is not None]
    assert called_bodies, "gradients reduced by Horovod inside of functions would not be refused (graph._get_function)"
    assert len(called_bodies[0].inputs) == len(called_bodies[0].outputs) == 1


def test_a_cast_of_keras_to_the_type_of_an_input_is_seen() -> None:
    casts: list[Any] = []

    class Look(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            if not tf.executing_eagerly() and isinstance(x, tf.Tensor):
                casts.extend(_keras_inputs.cast_for_input(x))
            return x

    inputs = keras.Input((2,), dtype="int64")
    model = keras.Model(inputs, Look()(inputs))
    tf.function(lambda x: model(x)).get_concrete_function(tf.TensorSpec([None, 2], tf.float32))
    assert [(tensor.dtype.name, dtype.name) for tensor, dtype in casts] == [("float32", "int64")], (
        "ids given as floats would be truncated without a warning (names of Keras's functions in op.traceback)"
    )


def test_functions_around_a_step_are_traced_anew() -> None:
    calls: list[str] = []
    hook = _keras.CallHook(lambda: calls.append("called"))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        calls.append("traced")
        hook.attach()
        return x + 1.0

    step(tf.zeros([]))
    assert calls[:2] == ["traced", "called"], "TimedBuckets would never look at its profile (capture_call_time_value)"
    assert hook.retrace(), "TimedBuckets would continue without its plan (tracing_options.function_cache)"
    calls.clear()
    step(tf.zeros([]))
    assert "traced" in calls


def test_the_model_that_fit_trains_is_found_from_its_optimizer() -> None:
    models_found = []

    class Optimizer(keras.optimizers.SGD):
        def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
            models_found.append(_keras.model_in_training(self))
            return super().apply_gradients(*args, **kwargs)

    model = small_model()
    model.compile(Optimizer(0.1), "mse", run_eagerly=True)
    model.fit(tf.zeros([4, 3]), tf.zeros([4, 1]), verbose=0)
    assert models_found[0] is model, "frozen weights that differ between ranks would not be found"


def test_fit_begins_at_an_epoch_and_a_batch() -> None:
    class Begin(keras.callbacks.Callback):
        seen: list[tuple[int, int]] = []  # noqa: RUF012 - one test uses it

        def on_train_begin(self, logs: Any = None) -> None:
            _keras_fit.begin_at_epoch(self.model, 2)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch
            _keras_fit.begin_epoch(self.model, 3 if epoch == 2 else 0, {2: 5, 3: 4, 4: 6}[epoch])

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen.append((self.epoch, batch))

        def on_train_end(self, logs: Any = None) -> None:
            _keras_fit.end(self.model)

    model, begin = small_model(), Begin()
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensors((np.ones((4, 3)), np.ones((4, 1)))).repeat(100).filter(lambda *_: True)
    model.fit(data, epochs=5, callbacks=[begin], verbose=0)
    first_batch = 0 if _keras.IS_KERAS_3 else 3  # Keras 3 numbers the batches that it gets
    assert begin.seen == [(2, first_batch), (2, first_batch + 1)] + [(3, n) for n in range(4)] + [
        (4, n) for n in range(6)
    ], "a restart would not resume at the batch (epoch_iterator, data_handler)"
    history = model.fit(data.take(2), epochs=2, verbose=0)
    assert history.epoch == [0, 1], "the next fit would begin where the restarted one began"
    with pytest.raises(RuntimeError, match="this version of Keras has no"):
        _keras_fit.begin_epoch(model, 0, None)


def test_seeds_metrics_and_rates_are_found_for_checkpoints() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    model.compile(keras.optimizers.SGD(0.25, momentum=0.5), "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    assert len(_keras_state.metric_variables(model)) == 2, "the loss of an epoch would start over (total and count)"
    rates = [variable for variable in _keras_state.optimizer_state(model.optimizer) if "learning_rate" in variable.name]
    assert len(rates) == 1, "a rate that a callback set would be lost"
    if _keras.IS_KERAS_3:
        (seed,) = _keras_state.seed_variables(model)
        assert any(seed is variable for variable in _keras_state.all_variables(model)), (
            "dropout would repeat itself after a restart"
        )
    else:
        assert _keras_state.seed_variables(model) == []  # Keras 2 has no variables for seeds, unless they are asked for


def test_datasets_tell_what_they_are_made_from_and_fit_what_it_was_given() -> None:
    data = tf.data.Dataset.from_tensors((np.ones((4, 3)), np.ones((4, 2))))
    pipeline = data.map(lambda x, y: (x, y)).prefetch(1)
    assert any(dataset is data for dataset in _tensorflow.datasets_in(pipeline)), (
        "a forgotten Checkpoint would not be seen"
    )
    assert list(_tensorflow.datasets_in(np.ones(3))) == []
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    inputs_seen = []

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            inputs_seen.append(_keras_fit.input_of(self.model))

    model.fit(pipeline, verbose=0, callbacks=[Look()])
    assert inputs_seen[0] is pipeline
    assert _keras_fit.input_of(model) is None


@KERAS_3
def test_metrics_are_made_before_the_first_batch() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mae"])
    batch = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2]))
    _keras_state.build_metrics(model, batch)
    assert len(_keras_state.metric_variables(model)) == 4, "metrics of an epoch would start over after a restart"
    _keras_state.build_metrics(model, (tf.TensorSpec([None, 7]),))  # another model's batch raises no error


@KERAS_3
def test_keras_adds_gradients_up_in_the_method_that_is_replaced() -> None:
    asked = []

    class Optimizer(keras.optimizers.SGD):
        def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
            asked.append(True)
            return super()._all_reduce_sum_gradients(grads_and_vars)

    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        variable, optimizer = keras.Variable([1.0]), Optimizer(0.5)
        optimizer.build([variable])
    strategy.run(lambda: optimizer.apply_gradients([(tf.constant([1.0]), variable)]))
    assert asked, "gradients would be added up twice under tf.distribute: Keras now calls another method"


@KERAS_3
def test_a_keras_without_that_method_is_an_error() -> None:
    class Optimizer(keras.optimizers.SGD):
        _all_reduce_sum_gradients = None

    variable, optimizer = keras.Variable([1.0]), Optimizer(0.5)
    optimizer.build([variable])
    with pytest.raises(RuntimeError, match="added up twice"):
        _keras.apply_optimizer(optimizer, [tf.constant([1.0])], [variable])


@KERAS_2
def test_rates_and_slots_of_keras_2() -> None:
    variable = tf.Variable([1.0])
    schedule = keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5)
    optimizer = keras.optimizers.SGD(schedule)
    assert float(_keras.current_learning_rate(optimizer)) == 1.0, "Optimizer._learning_rate"
    legacy = keras.optimizers.legacy.Adam(schedule)
    _keras.build_optimizer(legacy, [variable])
    assert len(legacy.weights) == 3, "Optimizer._create_all_weights makes no slots, so ranks would not compare them"
    assert float(_keras.current_learning_rate(legacy)) == 1.0, "Optimizer._decayed_lr"


@pytest.mark.parametrize(
    ("name", "options", "slots"), [("SGD", {"momentum": 0.9}, 1), ("Adagrad", {}, 1), ("Adam", {}, 2)]
)
def test_slots_of_a_variable_are_found(name: str, options: dict[str, Any], slots: int) -> None:
    variable = keras.Variable([1.0, 2.0]) if _keras.IS_KERAS_3 else tf.Variable([1.0, 2.0])
    optimizer = getattr(keras.optimizers, name)(0.1, **options)
    _keras.build_optimizer(optimizer, [variable])
    slots_found = _keras.slots_of(optimizer, variable)
    assert [tuple(slot.shape) for slot in slots_found] == [(2,)] * slots, f"DelayedGlobal cannot correct {name}"


def test_names_without_weight_decay_are_found() -> None:
    optimizer = keras.optimizers.AdamW(0.1)
    assert _keras.names_without_weight_decay(optimizer) == []
    optimizer.exclude_from_weight_decay(var_names=["table"])
    assert _keras.names_without_weight_decay(optimizer) == ["table"], (
        "rows that are excluded from weight decay would decay (AdamW)"
    )


def test_an_optimizer_knows_the_strategy_that_it_was_made_under() -> None:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.1)
    assert _keras.strategy_of(optimizer) is strategy, "Optimizer._distribution_strategy"


def test_types_and_layers_of_keras() -> None:
    layer = keras.layers.Dense(1, dtype="mixed_bfloat16")
    assert _keras.policy_dtypes(layer) == ("float32", "bfloat16"), "Layer._dtype_policy"
    inner = small_model()
    outer = keras.Sequential([inner])
    assert len(_keras.layers_of(outer, keras.layers.Dense)) == 1, "Model._flatten_layers does not see nested layers"


@KERAS_3
def test_keras_takes_the_variable_that_is_made_for_it() -> None:
    values_made = []

    class Variable(_keras.VariableMadeHere):
        def make_value(self, value: Any) -> Any:
            values_made.append(tf.Variable(value() if callable(value) else value))
            return values_made[0]

    variable = Variable("zeros", shape=(2,), dtype="float32")
    assert variable.value is values_made[0], "the anchor would be a variable of Keras's own (Variable._initialize)"
    assert not _keras.is_deferred(variable)


def test_functions_that_save_are_replaced() -> None:
    package = _keras.Layer.__module__.split(".")[0]
    of_this_version = 0
    for module, name in _keras_hooks._SAVERS:
        try:
            owner: Any = importlib.import_module(module.format(keras=package))
        except ImportError:
            continue
        for part in name.split("."):
            owner = getattr(owner, part, None)
        of_this_version += owner is not None
    assert of_this_version >= 5, "ranks that save to the same path at the same time would mix their files"


def test_functions_that_trace_for_an_export_are_replaced(tmp_path: Path) -> None:
    inside: list[bool] = []

    class Seen(keras.layers.Layer):
        def call(self, x: tf.Tensor) -> tf.Tensor:
            inside.append(saving.traces_for_export())
            return x

    inputs = keras.Input((3,))
    model = keras.Model(inputs, Seen()(inputs))
    inside.clear()
    model.predict(tf.zeros([1, 3]), verbose=0)
    assert not any(inside)
    inside.clear()
    model.export(str(tmp_path / "model"))
    assert inside, "the export must trace the model"
    assert all(inside), "an export would look up rows on other nodes (ExportArchive.add_endpoint, write_out)"


@KERAS_3
def test_files_of_large_models_go_by_way_of_the_disk() -> None:
    functions_found = list(_keras_hooks._found(_keras_hooks._MEMORY_CHECK))
    assert functions_found, "a .keras file of a sharded table would be made in memory (saving_lib.is_memory_sufficient)"


def test_arrays_of_a_store_are_filled_and_read_by_parts(tmp_path: Path) -> None:
    class Parts(keras.layers.Layer):
        def call(self, x: tf.Tensor) -> tf.Tensor:
            return x

        def save_own_variables(self, store: Any) -> None:
            store["first"] = np.zeros(1, np.uint8)
            arrays = _keras_stores.new_arrays(store, {"rows": ((4, 2), np.float32)})
            assert arrays is not None, "tables would be saved from a copy in memory (H5IOStore._h5_entry_group)"
            arrays["rows"][1:3] = 7.0

        def load_own_variables(self, store: Any) -> None:
            rows = _keras_stores.stored(store, "rows")
            assert not isinstance(rows, np.ndarray), (
                "tables would be loaded into memory as a whole (saving_lib.safe_get_h5_dataset)"
            )
            assert np.asarray(rows[:2]).tolist() == [[0.0, 0.0], [7.0, 7.0]]
            self.loaded = True

    inputs = keras.Input((3,))
    model = keras.Model(inputs, Parts()(inputs))
    model.save_weights(str(tmp_path / "model.weights.h5"))
    model.load_weights(str(tmp_path / "model.weights.h5"))
    assert model.layers[1].loaded


def test_a_checkpoint_tells_what_it_saves() -> None:
    module = tf.Module()
    module.variable = tf.Variable(1.0)
    checkpoint = tf.train.Checkpoint(module=module)
    assert any(value is module.variable for value in _tensorflow.saved_with(checkpoint._saver)), (
        "ranks would not save a checkpoint together (TrackableSaver._graph_view)"
    )
    assert any(value is module.variable for value in _tensorflow.saved_with(module))


def test_a_guarded_variable_refuses_optimizers() -> None:
    class Refused(Exception):
        pass

    def refuse(*_: Any) -> None:
        raise Refused

    guarded = _keras.ResourceVariable(initial_value=[1.0])

    class Variable(_keras.VariableMadeHere):
        def make_value(self, value: Any) -> Any:
            return guarded

    variable = Variable("zeros", shape=(1,), dtype="float32") if _keras.IS_KERAS_3 else guarded
    _tensorflow.on_optimizer_key(guarded, refuse)
    with pytest.raises(Refused):  # otherwise any Keras optimizer trains a table's empty weight without an error
        keras.optimizers.SGD(0.1).build([variable])
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        assert float(guarded[0]) == 1.0, "reading a table under a strategy would be refused (distribute_utils)"


def test_a_variable_becomes_one_of_a_subclass_and_chooses_what_is_saved(tmp_path: Path) -> None:
    class Chosen(_tensorflow.ChoosesChildren, _keras.ResourceVariable):
        def saved_children(self, children: dict[str, Any], save_type: str) -> dict[str, Any]:
            return {name: child for name, child in children.items() if name != "left_out"}

    variable = _keras.ResourceVariable(initial_value=[1.0])
    _tensorflow.become(variable, Chosen)
    assert isinstance(variable, Chosen)
    _tensorflow.track(variable, tf.Variable(2.0), "kept")
    _tensorflow.track(variable, tf.Variable(3.0), "left_out")
    path = tf.train.Checkpoint(root=variable).write(str(tmp_path / "checkpoint"))
    names = [name for name, _ in tf.train.list_variables(path)]
    assert any("kept" in name for name in names), "a checkpoint would not contain tables (_track_trackable)"
    assert not any("left_out" in name for name in names), "_trackable_children"


def test_a_variable_made_for_a_strategy_belongs_to_it() -> None:
    variable = _keras.ResourceVariable(initial_value=[1.0])
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope() as strategy:
        _tensorflow.join_strategy(variable)
        assert strategy.extended.variable_created_in_scope(variable), "Keras 2's compile would refuse the model"


def test_an_asset_is_made_when_a_saved_model_is_written(tmp_path: Path) -> None:
    class Made(_tensorflow.ExportedAsset):
        def export(self) -> str:
            assert tf.executing_eagerly(), "ranks could not send their rows (context.eager_mode)"
            path = tmp_path / "made"
            path.write_text("content")
            return str(path)

    module = tf.Module()
    module.asset = Made(tf.constant("/nowhere"))
    tf.saved_model.save(module, str(tmp_path / "model"))
    module.asset.exported()
    assert (tmp_path / "model" / "assets" / "made").read_text() == "content", "a SavedModel would contain no table"


def test_who_calls_is_seen_through_modules() -> None:
    code = "def ask():\n    return called_by('somebody', 'between')\n"
    between: dict[str, Any] = {"__name__": "between.module", "called_by": _tensorflow.called_by}
    exec(code, between)
    for name, expected in (("somebody.else", True), ("other", False)):
        caller: dict[str, Any] = {"__name__": name, "ask": between["ask"]}
        exec("found = ask()", caller)
        assert caller["found"] is expected


def test_horovods_names() -> None:
    pytest.importorskip("horovod.tensorflow")
    from tf_sparse_ps._compat import _horovod  # imports Horovod

    assert callable(_horovod.mpi_ops._grouped_allreduce), "collectives cannot add up without dividing"
    assert hasattr(_horovod.mpi_ops.MPI_LIB, "horovod_join"), "hvd.join would hang instead of being refused"


def test_horovods_rendezvous_server_keeps_what_ranks_tell_it_until_all_have_read_it() -> None:
    pytest.importorskip("horovod.runner")
    from tf_sparse_ps._compat import _horovod_runner  # imports Horovod

    server = _horovod_runner.Rendezvous("127.0.0.1", lambda _: True)
    slot = types.SimpleNamespace(hostname="host", size=2, local_rank=0, local_size=2, cross_size=1)
    server.begin([slot, slot])

    def ask(method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request(method, path, body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    broken = "ranks that tf-sparse-ps run starts would not meet (RendezvousHTTPServer)"
    assert ask("PUT", "/global/0", b"address")[0] == 200, broken
    assert ask("GET", "/global/0") == (200, b"address"), broken
    for rank in range(2):
        assert ask("DELETE", f"/global/{rank}")[0] == 200, broken
    assert ask("GET", "/global/0")[0] == 404, "hvd.init() after hvd.shutdown() would find old addresses"


# --- the modules that may use them ---


def private_names(tree: ast.Module, own: set[str]) -> list[tuple[int, str]]:
    """Returns attributes with an underscore that are not the library's own, and private modules."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            private = re.match(r"_[^_]", node.attr) and node.attr not in own
            if private or (node.attr == "__class__" and isinstance(node.ctx, ast.Store)):
                names.append((node.lineno, node.attr))
        elif isinstance(node, ast.ImportFrom) and PRIVATE_MODULES.match(node.module or ""):
            names.append((node.lineno, str(node.module)))
    return sorted(names)


def own_names() -> set[str]:
    """Returns names of functions, classes, attributes and variables that the library or Python defines."""
    names = {"_exit", "_current_frames", "_asdict", "_replace"}
    for module in LIBRARY.rglob("*.py*"):
        if module.suffix not in (".py", ".pyi"):
            continue
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                    names.add(node.attr)
            elif isinstance(node, ast.alias):
                names.add((node.asname or node.name).rpartition(".")[2])
    return names


def test_private_names_are_in_compat_alone() -> None:
    own_attributes = own_names() - {"_initialize", "_trackable_children", "_export_to_saved_model_graph"}
    names_outside = {
        f"{module.relative_to(ROOT)}:{line} {name}"
        for module in LIBRARY.rglob("*.py")
        if "_compat" not in module.parts
        for line, name in private_names(ast.parse(module.read_text()), own_attributes)
    }
    assert names_outside == set()


def test_a_private_name_elsewhere_is_found() -> None:
    lines = ("variable._distributed_container = 1", "from tensorflow.python.eager import context", "x.__class__ = y")
    tree = ast.parse("\n".join(lines))
    assert [name for _, name in private_names(tree, own_names())] == [
        "_distributed_container",
        "tensorflow.python.eager",
        "__class__",
    ]


def test_the_table_names_what_is_there() -> None:
    text = (ROOT / "docs" / "private-names.md").read_text()
    sources = "\n".join(module.read_text() for module in (LIBRARY / "_compat").glob("*.py"))
    rows = [row.split("|") for row in text.splitlines() if row.startswith("| ") and "`" in row]
    assert len(rows) > 20
    for row in rows:
        for name in re.findall(r"`([\w.()]+)`", row[1]):
            last = name.rstrip(".").replace("()", "").rpartition(".")[2]
            assert last in sources or last == "Model", f"{name} is in the table and not in _compat"
