"""Plans a job before its first run: memory, placement and step time of its tables. Does not import TensorFlow.

- `configuration`: the job, read from JSON. `model_tables`: the tables of a Keras model, whose program has imported
  TensorFlow.
- `memory`: the bytes of a table. `skew` and `samples`: how often ids occur. `costs`: what work costs on this machine.
- `step_time`: the time of a step, and its bytes. `planner`: chooses, and adds up.
"""

from tf_sparse_ps.plan.configuration import PlanConfig, PlannedTable, parse
from tf_sparse_ps.plan.costs import Costs, measure, measure_disk
from tf_sparse_ps.plan.planner import Choice, Plan, Planner
from tf_sparse_ps.plan.skew import Sampled, Skew, Zipf

__all__ = [
    "Choice",
    "Costs",
    "Plan",
    "PlanConfig",
    "PlannedTable",
    "Planner",
    "Sampled",
    "Skew",
    "Zipf",
    "measure",
    "measure_disk",
    "parse",
]
