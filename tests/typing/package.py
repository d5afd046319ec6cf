"""The package's own facts, as the type checkers see them. Checked, never run."""

from __future__ import annotations

from typing import assert_type

import sqla_taskqueue

assert_type(sqla_taskqueue.__version__, str)
