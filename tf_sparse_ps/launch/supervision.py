"""Starts the ranks of this machine, waits for their end, and ends them when one fails, here or on another machine."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_sparse_ps.collectives.key_values import EXIT_REPORT, KeyValueStore
from tf_sparse_ps.errors import LaunchError
from tf_sparse_ps.launch import environment, launch_secret, meeting
from tf_sparse_ps.launch.key_values import Store
from tf_sparse_ps.launch.meeting import Meeting, Node, Ports, Terms
from tf_sparse_ps.launch.node_link import NodeLink
from tf_sparse_ps.launch.options import Options
from tf_sparse_ps.launch.outcome import Cause, NodeEnd, Outcome, decide
from tf_sparse_ps.launch.output import Output, say
from tf_sparse_ps.launch.ranks import Rank
from tf_sparse_ps.monitoring.job_watch import JobWatch
from tf_sparse_ps.node import job_folder, local_peers

# The time between the failure of a rank and SIGTERM for the others, in which they can report the rank that they miss.
# `failures/ending.py` takes four seconds.
GRACE_S = 5.0
# The time between SIGTERM and SIGKILL after a failure. After a signal to a launcher it is `Options.grace_s`.
KILL_S = 5.0
# The time between SIGINT, which the ranks get after Ctrl-C, and SIGTERM.
_INTERRUPT_S = 3.0
_GIVE_UP_S = 10.0  # the time after SIGKILL until the launcher stops waiting
_OUTPUT_S = 2.0  # the time to wait for the last output of the ranks
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(options: Options) -> int:
    """Runs a job's ranks on this machine, and returns the launcher's exit status.

    Raises:
      LaunchError: The ranks cannot be started.
      KeyboardInterrupt: Ctrl-C was pressed before the ranks were started.
    """
    output = Output(log_dir=options.log_dir, all_ranks=options.all_ranks)
    store, job = (Store() if options.node_rank == 0 else None), uuid.uuid4().hex[:16]
    secret = launch_secret.of_launchers(several=options.coordinator is not None)
    server = None if store is None else meeting.serve(options.coordinator, store, secret, job)
    address = options.coordinator or ("127.0.0.1", server.server_port if server is not None else 0)
    with contextlib.ExitStack() as stack:
        if server is not None:
            stack.callback(server.close)
        run_of_job = _Job(options, address, store, output, secret, job)
        if options.metrics_port is not None:
            from tf_sparse_ps.monitoring import exporter  # its package is optional

            folder = os.path.abspath(job_folder.default())
            stack.enter_context(exporter.serving(folder, options.metrics_port, chosen=run_of_job.watch.has))
        return run_of_job.run()


class _Job:
    """The part of a job on this launcher's machine."""

    def __init__(
        self,
        options: Options,
        address: tuple[str, int],
        store: Store | None,
        output: Output,
        secret: bytes,
        job: str,
    ) -> None:
        self._options, self._address, self._store, self._output = options, address, store, output
        self._secret, self._job = secret, job
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._link: NodeLink | None = None
        self._ranks: list[Rank] = []
        self._failed: list[int] = []  # the ranks that failed before the launcher ended them, in this order
        self._cause: Cause | None = None
        folder = os.path.abspath(job_folder.default())
        self.watch = JobWatch(folder, lambda: [rank.pid for rank in self._ranks])

    def run(self) -> int:
        options = self._options
        ports: Ports | None = None
        host = meeting.own_address(options.coordinator)
        if options.collectives == "tensorflow":
            ports = Ports(options.ranks)
            nodes = self._meet(Node(host, options.ranks, ports.numbers))
        else:
            nodes = self._meet_for_horovod(host)
        environments = self._environments(nodes)
        with self._signals():
            if ports is not None:
                ports.release()
            self._start(environments)
            if self._link is not None:
                self._link.watch(self._events)
            self._wait()
            self.watch.close()
            outcome = self._finish()
        if line := self.watch.line():
            say(line, after_ranks=True)
        if outcome.text:
            say(outcome.told(shown=self._shown(outcome.rank)), after_ranks=True)
        return outcome.status

    # --- before the ranks start ---

    def _meet(self, node: Node, prepare: Callable[[list[Node]], None] = lambda _: None) -> list[Node]:
        options = self._options
        if options.coordinator is None:
            prepare([node])
            return [node]
        terms = Terms(options.nnodes, options.collectives)
        launchers = Meeting(
            options.node_rank, terms, options.coordinator, options.timeout_s, say, self._store, self._secret, self._job
        )
        nodes = launchers.hold(node, prepare)
        self._job = launchers.job
        self._link = NodeLink(options.node_rank, nodes, launchers.texts, launchers.job, options.grace_s)
        return nodes

    def _meet_for_horovod(self, host: str) -> list[Node]:
        options = self._options
        if options.node_rank > 0:
            return self._meet(Node(host, options.ranks, named=meeting.named_address()))
        from tf_sparse_ps._compat._horovod_runner import Rendezvous  # Horovod is optional

        server = Rendezvous("" if not host.startswith("127.") else host, local_peers.may_connect)
        node = Node(host, options.ranks, (), server.port, meeting.named_address())
        return self._meet(node, lambda nodes: server.begin(environment.slots(nodes)))

    def _environments(self, nodes: Sequence[Node]) -> dict[int, dict[str, str]]:
        """Returns the environment variables of this node's ranks, by rank."""
        options, environments = self._options, {}
        common = environment.common(os.environ, options.ranks)
        if self._output.buffered:
            common.setdefault("PYTHONUNBUFFERED", "1")
        for placement in environment.placements(nodes):
            if placement.node_rank == options.node_rank:
                key_values, secret = f"{self._address[0]}:{self._address[1]}", self._rank_secret.decode()
                variables = environment.of_rank(placement, key_values, secret)
                if options.collectives == "horovod":
                    variables |= environment.of_horovod(placement, nodes, (self._address[0], nodes[0].rendezvous))
                else:
                    variables |= environment.of_tensorflow(placement, nodes)
                environments[placement.rank] = common | variables
        return environments

    # --- while the ranks run ---

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Puts signals into the queue of events."""
        # Ignored signals stay ignored, for example SIGHUP under nohup.
        handled = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        handlers = {number: signal.signal(number, lambda signum, _: self._events.put(signum)) for number in handled}
        handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: self._output.resize())
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _start(self, environments: dict[int, dict[str, str]]) -> None:
        try:
            for number, values in environments.items():
                self._ranks.append(Rank(number, self._options.command, values, self._output.streams(number)))
            self._output.start()
            for rank in self._ranks:
                rank.report_end(self._events)
            self.watch.start()
        except (OSError, RuntimeError, LaunchError) as error:  # RuntimeError: the system has no more threads
            for rank in self._ranks:
                rank.end(signal.SIGKILL)
                rank.collect()
            text = f"node {self._options.node_rank} cannot start its ranks: {error}"
            if self._link is not None:
                self._link.tell(Cause(self._options.node_rank, None, 1, text))
            raise LaunchError(text, error.status if isinstance(error, LaunchError) else 1) from None

    def _wait(self) -> None:
        """Returns when all ranks have ended. Ends them if a rank of any node fails, or after a signal."""
        steps: list[tuple[float, int]] = []  # the signals to send, with their times
        interrupts = 0
        running = set(self._ranks)
        while running:
            event = self._next(steps)
            now = time.monotonic()
            if isinstance(event, Rank):
                running.discard(event)
                if event.collect() != 0 and not event.told:
                    self._failed.append(event.number)
                    event = Cause(self._options.node_rank, event.number, event.status or 0)
            if isinstance(event, Cause) and self._cause is None:
                self._cause = event
                if self._link is not None:
                    self._link.tell(event)
                # If no rank has failed, the others have nothing to report, and get SIGTERM immediately.
                term = now + (0.0 if event.rank is None else GRACE_S)
                kill_s = self._options.grace_s if event.is_signal else KILL_S
                steps = [(term, signal.SIGTERM), (term + kill_s, signal.SIGKILL)]
            elif isinstance(event, int):
                interrupts += 1
                # A scheduler may send SIGTERM several times, which must not take the ranks' time to save.
                if interrupts == 1 or event == signal.SIGINT:
                    steps = self._interrupted(event, interrupts, now)
            elif event is None and not steps:
                pids = ", ".join(str(rank.pid) for rank in running)
                say(f"these processes have not ended after SIGKILL: {pids}. The launcher ends without them")
                return
            while steps and steps[0][0] <= now:
                _, number = steps.pop(0)
                for rank in running:
                    rank.end(number)
                    if number != signal.SIGKILL:
                        rank.end(signal.SIGCONT)  # a stopped process handles the signal only after SIGCONT

    def _next(self, steps: list[tuple[float, int]]) -> Any:
        """Returns the next event; None at the time of the next step, or when it is time to give up."""
        if self._cause is None:
            return self._events.get()
        timeout_s = max(0.0, steps[0][0] - time.monotonic()) if steps else _GIVE_UP_S
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=timeout_s)
        return None

    def _interrupted(self, number: int, times: int, now: float) -> list[tuple[float, int]]:
        """Returns the signals to send, with their times, after this launcher got a signal.

        Args:
          number: The number of the signal.
          times: The number of signals that this launcher has got.
          now: The time.
        """
        first = self._cause is None
        if first:
            self._cause = Cause.interrupted(self._options.node_rank, number)
            if self._link is not None:
                self._link.tell(self._cause)
        if times > 1:
            return [(now, signal.SIGKILL)]
        if first and number == signal.SIGINT:
            return [
                (now, signal.SIGINT),
                (now + _INTERRUPT_S, signal.SIGTERM),
                (now + _INTERRUPT_S + self._options.grace_s, signal.SIGKILL),
            ]
        return [(now, signal.SIGTERM), (now + (self._options.grace_s if first else KILL_S), signal.SIGKILL)]

    # --- after the ranks have ended ---

    def _finish(self) -> Outcome:
        self._output.finish(_OUTPUT_S)
        statuses = {rank.number: -signal.SIGKILL if rank.status is None else rank.status for rank in self._ranks}
        lines = {number: self._output.last_lines(number) for number in self._failed}
        end = NodeEnd(statuses, self._failed, lines)
        if any(statuses.values()):
            self._free_tables()
        if self._link is None:
            return decide(self._cause, {0: end}, self._exit_report())
        return self._link.finish(end, self._cause, self._exit_report, self._events)

    def _free_tables(self) -> None:
        """Removes the tables of ranks that were killed, and so could not remove them."""
        with contextlib.suppress(OSError):
            job_folder.remove_groups_of({rank.pid for rank in self._ranks})

    def _exit_report(self) -> str:
        return KeyValueStore(self._address, secret=self._rank_secret).read(EXIT_REPORT)

    @property
    def _rank_secret(self) -> bytes:
        return launch_secret.of_ranks(self._secret, self._job)

    def _shown(self, rank: int | None) -> bool:
        return rank in [own_rank.number for own_rank in self._ranks] and self._output.shown(rank or 0)
