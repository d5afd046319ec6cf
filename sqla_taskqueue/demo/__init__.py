"""A race to watch: ``python -m sqla_taskqueue demo``.

A small host application with its own tables enqueues tasks in its own transactions; workers in
several processes race for them; one process is killed while it holds claims; and the claims that
every worker wrote down show in the end that each task was done exactly once.

It is an application like any other: of the library it uses the public names only.
"""

from __future__ import annotations
