"""Runs a compiled package under kfp.local, in a process of its own: `python run_package.py PACKAGE ROOT ARGUMENTS(JSON)`.

Prints one JSON line: where the outputs are, and the seconds each task took beyond what its own log says.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

warnings.simplefilter("ignore")

from kfp import components, local  # noqa: E402

package, root, arguments = sys.argv[1:]
local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=root, raise_on_error=True)
started = time.monotonic()
components.load_component_from_file(package)(**json.loads(arguments))
print(json.dumps({"seconds": time.monotonic() - started}))
