"""Training on one or many ranks.

- `distributed_optimizer`, `gradient_tape`: the public wrappers. `step_builder`: builds the training step.
- `optimizer_binding`: connects an optimizer with ranks and tables; `step_facts`: what ranks compare in each step.
- `initial_sync`: makes the ranks' weights equal before the first step; `fits`: what ranks compare when `fit` begins.
- `optimizer_options`: the options of the optimizer as the modules that build its steps see them.
- `replicas`: steps under a tf.distribute strategy; `balance`: how evenly sharded tables lie on nodes.
- `look_ahead`: reads the rows of the next batches; `refusals`, `loaded_options`: what cannot work, and saved options.
"""
