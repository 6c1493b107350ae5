"""Tables wherever they are: in a group's folder, a sparse-parameter file, a checkpoint or a served version.

`paths` tells these apart, `tables` lists the tables at a path, and `contents` reads the rows of one. Needs no
TensorFlow.
"""
