"""A worker of a MultiWorkerMirroredStrategy, which finds the others by TF_CONFIG."""

from __future__ import annotations

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def total() -> tf.Tensor:
    """Returns the sum of all workers' numbers plus one."""

    def sum_of_replicas() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        number_plus_one = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
        return context.all_reduce(tf.distribute.ReduceOp.SUM, number_plus_one)

    return strategy.run(sum_of_replicas)


print("total", float(total()))
