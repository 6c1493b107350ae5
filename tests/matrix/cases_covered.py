"""Rows that other suites run: under strategies, and ends of a job. `make nightly` runs them under both Kerases."""

from __future__ import annotations

from registry import covered

_MIRRORED, _WORKERS = "tests/distribute/test_mirrored.py", "tests/distribute/test_workers.py"
_FAILED, _AGREE = "tests/multirank/test_failed_ranks_are_named.py", "tests/multirank/test_ranks_must_agree.py"
_BEGIN = "tests/multirank/test_ranks_begin_alike.py"
_LAUNCHERS, _SEVERAL = "tests/training/test_launchers.py", "tests/training/test_several_optimizers.py"

covered(
    "training",
    "`MultiWorkerMirroredStrategy`, `MirroredStrategy`",
    f"{_WORKERS}::test_two_workers_equal_the_reference",
    f"{_MIRRORED}::test_two_replicas_equal_two_ranks_of_the_reference",
)
covered(
    "training",
    "processes of `mpirun`, `srun` or `horovodrun` that are not connected",
    f"{_LAUNCHERS}::test_ranks_of_mpirun_that_have_not_met_are_refused_until_they_say_that_they_are_alone",
    f"{_LAUNCHERS}::test_ranks_of_srun_that_have_not_met_are_refused_and_the_script_of_a_batch_job_trains",
    refused=True,
)
covered(
    "training",
    "ranks that differ in tables, rules, options or dense shapes",
    f"{_AGREE}::test_every_rank_says_what_differs",
    refused=True,
)
covered(
    "training",
    "ranks that begin with different dense weights, or of which rank 0 alone has loaded a model",
    f"{_BEGIN}::test_ranks_of_different_seeds_have_the_same_weights_after_fit",
    f"{_BEGIN}::test_one_rank_alone_may_load_and_all_train_on",
)
covered(
    "training",
    "optimizers in several threads at a time",
    f"{_SEVERAL}::test_a_step_that_another_thread_has_overtaken_is_refused_whole",
    refused=True,
)
covered(
    "training",
    "a layer in several models, each with its optimizer",
    f"{_SEVERAL}::test_models_that_share_a_layer_train_it_by_one_rule",
)
covered(
    "training",
    "a layer in several models whose optimizers have other rules for it",
    f"{_SEVERAL}::test_of_models_that_share_a_layer_and_differ_in_its_rule_the_former_is_refused_whole",
    f"{_SEVERAL}::test_rules_that_differ_in_their_first_slots_are_refused_where_a_step_is_traced",
    refused=True,
)
covered(
    "training",
    "ranks with different numbers of batches",
    f"{_FAILED}::test_ranks_that_leave_the_others_alone_are_named_on_all_nodes",
    refused=True,
)
covered(
    "training",
    "`hvd.join`",
    f"{_FAILED}::test_ranks_that_leave_the_others_alone_are_named_on_all_nodes",
    refused=True,
)

_LAYERS, _SHARDED = "tests/layers/test_sharded_configs.py", "tests/multirank/test_sharded_layers.py"
covered(
    "training",
    "tables with `placement=tsps.Sharded()`, beside others",
    f"{_SHARDED}::test_what_users_do_with_sharded_tables",
    "tests/multirank/test_sharded_equals_reference.py::test_rows_are_those_of_the_reference",
)
covered(
    "training",
    'sharded tables with `clipnorm`, `global_clipnorm`, `topology="flat"`, `DelayedGlobal` or '
    "`TimedBuckets(server=True)`",
    f"{_LAYERS}::test_optimizers_that_cannot_train_sharded_tables_refuse_them_on_one_machine_too",
    refused=True,
)
covered(
    "training",
    "a lookup of a sharded table by some ranks only, or in a function of a `tf.data.Dataset`",
    f"{_SHARDED}::test_ranks_that_do_not_look_up_are_named_by_those_that_wait",
    f"{_LAYERS}::test_a_look_up_in_a_dataset_is_refused",
    refused=True,
)

covered(
    "layers",
    "`tf.distribute` strategies with several replicas",
    f"{_WORKERS}::test_two_workers_equal_the_reference",
    f"{_MIRRORED}::test_fit_equals_keras_under_the_same_strategy",
)

_REFUSED = f"{_MIRRORED}::test_what_cannot_work_is_refused_with_the_reason"
covered(
    "strategies",
    "custom training loops, `MultiWorkerMirroredStrategy`, one device per worker",
    f"{_WORKERS}::test_two_workers_equal_the_reference",
    f"{_WORKERS}::test_workers_of_two_nodes_equal_the_reference",
)
covered(
    "strategies",
    "custom training loops, `MirroredStrategy`",
    f"{_MIRRORED}::test_two_replicas_equal_two_ranks_of_the_reference",
)
covered("strategies", "`fit`, `MirroredStrategy`", f"{_MIRRORED}::test_fit_equals_keras_under_the_same_strategy")
covered(
    "strategies",
    "`fit`, `MultiWorkerMirroredStrategy`",
    f"{_WORKERS}::test_fit_equals_keras_under_the_same_strategy",
    f"{_WORKERS}::test_fit_ends_with_keras_3s_own_error",
)
covered(
    "strategies",
    '`topology="hierarchical"` and `"flat"`, `wire`, all reductions, clipping',
    f"{_WORKERS}::test_workers_of_two_nodes_equal_the_reference",
    f"{_WORKERS}::test_a_narrow_wire_between_nodes",
)
covered(
    "strategies",
    "`tsps.DistributedGradientTape`, `BroadcastVariables`, `MetricAverage`",
    f"{_WORKERS}::test_fit_equals_keras_under_the_same_strategy",
    f"{_MIRRORED}::test_fit_equals_keras_under_the_same_strategy",
)
covered(
    "strategies",
    "sharded tables, one worker per machine",
    f"{_WORKERS}::test_sharded_tables_of_workers_of_several_nodes_equal_replicated_ones",
)
covered(
    "strategies",
    "sharded tables, several workers of a machine",
    f"{_WORKERS}::test_sharded_tables_of_workers_that_share_a_machine_are_refused",
    refused=True,
)
covered(
    "strategies",
    "several devices in each of several workers",
    f"{_MIRRORED}::test_several_replicas_in_each_of_several_workers_are_refused",
    refused=True,
)
covered(
    "strategies",
    "`apply_gradients` outside of `strategy.run`, or in a tf.function or control flow within its function",
    _REFUSED,
    refused=True,
)
covered("strategies", "a wrapped optimizer, or the wrapper, made outside of the scope", _REFUSED, refused=True)
covered(
    "strategies",
    "a table made before the strategy's scope, of several workers",
    f"{_MIRRORED}::test_a_table_made_before_the_strategy_is_refused",
    refused=True,
)
covered("strategies", "Keras 2's legacy optimizers", _REFUSED, refused=True)
covered("strategies", 'Horovod initialised as well; `collectives="horovod"` or `"local"`', _REFUSED, refused=True)
covered("strategies", "`TPUStrategy`, `ParameterServerStrategy`, `CentralStorageStrategy`", _REFUSED, refused=True)
