// Forwards to where TensorFlow 2.21 keeps this header; see tools/horovod/build.sh.
#pragma once
#include "xla/service/custom_call_target_registry.h"
