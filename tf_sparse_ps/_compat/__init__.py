"""What differs between versions of Keras and TensorFlow, and every private name of theirs and of Horovod's."""
