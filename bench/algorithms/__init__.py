"""How long a step takes, beside a straightforward reference loop in the same run."""
