// Forwards to where TensorFlow 2.21 keeps this header; see tools/horovod/build.sh.
#pragma once
#include "xla/hlo/builder/xla_builder.h"
