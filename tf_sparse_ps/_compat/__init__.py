"""Hides the differences between versions of Keras and TensorFlow, and all private names of these libraries and Horovod.

- `_keras`: the differences between Keras 2 and Keras 3; `_keras_inputs`: inputs of models and layers.
- `_keras_state`: the variables of models and optimizers that checkpoints and exports contain.
- `_keras_fit`: the first batch, the inputs and the end of `fit`.
- `_keras_hooks`: functions of Keras that are replaced; `_keras_stores`: the files that Keras saves to.
- `_registration`: registers the package's classes with Keras, so that saved models load.
- `_tensorflow`, `_horovod`, `_horovod_runner`: private names of these libraries.

docs/private-names.md lists the private names, and tests/compat tests each of them.
"""
