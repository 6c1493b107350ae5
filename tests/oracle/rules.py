"""The table of everything that is not drawn, with reasons.

REFUSED: the library refuses it by design, with the reason in the docs. OPEN: a known fault, to be drawn again after it
is fixed. CONTENT: the oracle itself could not distinguish right from wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.oracle.options import Kill, Options

REFUSED, OPEN, CONTENT = "refused", "open", "content"
DELAYED_RULES = ("sgd", "momentum", "nesterov", "adagrad", "adam")


@dataclasses.dataclass(frozen=True)
class Rule:
    """Something that is not drawn.

    Attributes:
      kind: `REFUSED`, `OPEN` or `CONTENT`.
      reason: The reason in words.
      applies: Whether the rule applies to options.
    """

    kind: str
    reason: str
    applies: Callable[[Options], bool]


def _sharded(options: Options) -> bool:
    return options.any_table(placement="sharded")


def _cached(options: Options) -> bool:
    return any(table.cache for table in options.tables)


def _several_nodes(options: Options) -> bool:
    return len(options.nodes) > 1


RULES = (
    # --- engines and layouts ---
    Rule(REFUSED, "collectives='local' is one rank", lambda o: o.engine == "local" and o.ranks > 1),
    Rule(
        CONTENT,
        "TensorFlow's collectives connect at least two ranks",
        lambda o: o.engine == "tensorflow" and o.ranks < 2,
    ),
    Rule(CONTENT, "a directory of each machine is about several", lambda o: o.per_node and not _several_nodes(o)),
    Rule(CONTENT, "one rank sends nothing", lambda o: o.ranks == 1 and (o.wire != "float32" or o.topology == "flat")),
    # --- sharded tables ---
    Rule(
        REFUSED,
        "sharded tables with topology='flat', DelayedGlobal or TimedBuckets(server=True)",
        lambda o: _sharded(o) and (o.topology == "flat" or o.schedule in ("delayed", "server")),
    ),
    # --- schedules ---
    Rule(
        REFUSED,
        "DelayedGlobal takes SGD, Adagrad and Adam, without clipping",
        lambda o: o.schedule == "delayed" and (o.rule not in DELAYED_RULES or not o.matched or o.clip > 0),
    ),
    Rule(
        REFUSED,
        "tables on disk with DelayedGlobal or TimedBuckets(server=True)",
        lambda o: o.any_table(storage="tiered") and o.schedule in ("delayed", "server"),
    ),
    Rule(CONTENT, "on one rank a schedule does nothing", lambda o: o.ranks == 1 and o.schedule != "synchronous"),
    Rule(
        CONTENT,
        "DelayedGlobal promises the same bits on two ranks only, and tables are compared by bits",
        lambda o: o.schedule == "delayed" and o.ranks > 2,
    ),
    # --- rows on a device ---
    Rule(
        REFUSED,
        "DeviceCache with several ranks, tables on disk, sharded tables, or DelayedGlobal",
        lambda o: _cached(o) and (o.ranks > 1 or any(t.cache and t.storage == "tiered" for t in o.tables)),
    ),
    Rule(
        REFUSED, "DeviceCache on a sharded table", lambda o: any(t.cache and t.placement == "sharded" for t in o.tables)
    ),
    Rule(
        CONTENT,
        "a device's float32 sums differ in the last bits, which rounding to 16 bits makes larger",
        lambda o: any(t.cache and t.dtype != "float32" for t in o.tables) and o.rule != "sgd",
    ),
    Rule(
        CONTENT,
        "a killed device loses rows: tables alone are then a mixture",
        lambda o: _cached(o) and o.policy == "live",
    ),
    Rule(
        OPEN,
        "a cache's flush is not atomic with concurrent training: saves are written between steps",
        lambda o: _cached(o) and o.background,
    ),
    # --- growing vocabularies ---
    Rule(
        REFUSED,
        "DeviceCache on a table that evicts rows",
        lambda o: any(t.cache and t.eviction for t in o.tables),
    ),
    Rule(
        REFUSED,
        "DeviceCache on a table that admits keys",
        lambda o: any(t.cache and t.count for t in o.tables),
    ),
    Rule(
        REFUSED,
        "DelayedGlobal with tables that evict rows",
        lambda o: o.schedule == "delayed" and any(t.eviction for t in o.tables),
    ),
    Rule(
        REFUSED,
        "DelayedGlobal with tables that admit keys",
        lambda o: o.schedule == "delayed" and any(t.count for t in o.tables),
    ),
    # --- update rules ---
    Rule(CONTENT, "Keras has no such optimizer", lambda o: o.matched and o.rule == "rowwise_adagrad"),
    # --- tables ---
    Rule(REFUSED, "weights= of an unbounded table", lambda o: any(t.weights and not t.bounded for t in o.tables)),
    Rule(
        CONTENT,
        "the order in which features of one table are added up is not documented",
        lambda o: any(t.features > 1 and t.layer != "collection" for t in o.tables),
    ),
    Rule(
        CONTENT,
        "only sharded tables have rows that travel",
        lambda o: any(t.pull != "float32" and t.placement != "sharded" for t in o.tables),
    ),
    Rule(
        CONTENT,
        "float32 has nothing to round",
        lambda o: any(t.dtype == "float32" and t.rounding == "nearest" for t in o.tables),
    ),
    # --- what restarts resume from ---
    Rule(
        CONTENT,
        "without a checkpoint the next run of a named job resets slots at its first step, not at its beginning: a "
        "position would have two states",
        lambda o: o.policy == "live" and o.rule != "sgd",
    ),
    Rule(
        CONTENT,
        "the policy 'live' resumes at a step of the tables",
        lambda o: o.policy == "live" and o.schedule == "delayed",
    ),
    Rule(CONTENT, "the tables of an unnamed job are removed with it", lambda o: o.policy == "live" and not o.named),
)


# Kills that are not drawn:
# - OPEN: If the launcher and all ranks of several nodes die at once, one node may have published a step that another
#   node has only sealed. If the first node then dies in its next mutation, the job cannot restart.
def avoided(options: Options, kill: Kill) -> bool:
    """Whether a kill is not drawn."""
    if kill.who == "everything" and _several_nodes(options):
        return True
    if kill.who == "launcher":  # here, `tf-sparse-ps run` starts ranks of one machine
        return _several_nodes(options) or options.ranks < 2
    return False


def objection(options: Options) -> Rule | None:
    """Returns the first rule against options."""
    return next((rule for rule in RULES if rule.applies(options)), None)


# Operations that scripts do not have:
# - OPEN: A write, a learning rate or an evaluation of one rank alone makes ranks diverge, so all ranks make all
#   operations.
# - REFUSED: A second optimizer for tables that another one has trained. A draw has one optimizer.
# - OPEN: Refused steps and two batches per update move the position of `fit` after a restart. The policy "callback"
#   has neither.
# - OPEN: Other processes wait for, and fail at, a sealed step. Only the next run reads the tables of several nodes
#   between runs, and it decides that step first.
# - CONTENT: `load_weights` resets the optimizer's iterations, so that checkpoints are no longer in their order. It is
#   drawn without checkpoints.
# - CONTENT: `load_weights` of a table that evicts rows. The docs do not say how many steps the loaded rows count.
# - REFUSED: A step with more keys than `max_rows` of an eviction. `draw.py` chooses larger bounds.
# - CONTENT: `evict` with the policy "live", which finds its position by the step of the tables.
# - REFUSED: Looking ahead if all rows are in the memory of the machine.
def may_look_ahead(options: Options) -> bool:
    """Whether `tsps.lookahead` is drawn."""
    return _cached(options) or _sharded(options) or options.any_table(storage="tiered")


def may_load_weights(options: Options) -> bool:
    """Whether `load_weights` is drawn."""
    evicts = any(table.eviction for table in options.tables)
    return options.policy == "none" and options.schedule == "synchronous" and not _cached(options) and not evicts


def may_refuse(options: Options) -> bool:
    """Whether a refused step is drawn. It ends a job under DelayedGlobal, and plans need profiles."""
    return options.policy != "callback" and options.schedule == "synchronous" and not _cached(options)


def may_weigh(options: Options) -> bool:
    """Whether `rank_weight` is drawn."""
    return options.ranks > 1 and options.policy != "callback" and options.schedule != "delayed"
