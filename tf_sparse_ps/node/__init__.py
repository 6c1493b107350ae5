"""The machine on which ranks run.

- `node_discovery`: which ranks share a machine.
- `job_folder`: the folder that contains the tables of all jobs on the machine.
- `activity`: what this process is doing, and when it last made progress.
- `local_peers`: which user is at the other end of a local socket.
"""
