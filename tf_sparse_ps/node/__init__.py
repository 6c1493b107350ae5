"""The machine on which ranks run.

- `node_discovery`: finds out which ranks share a machine.
- `job_folder`: the folder that contains the tables of all jobs on the machine.
- `activity`: the current activity of this process, and the time of its last progress.
- `rank_counters`: what the ranks of a group count, for any process that asks.
- `local_peers`: finds the user at the other end of a local socket.
"""
