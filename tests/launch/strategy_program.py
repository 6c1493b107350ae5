"""A worker of a MultiWorkerMirroredStrategy, which finds the others by TF_CONFIG."""

from __future__ import annotations

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def total() -> tf.Tensor:
    """The sum over all workers of their numbers plus one."""

    def own() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        mine = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
        return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)

    return strategy.run(own)


print("total", float(total()))
