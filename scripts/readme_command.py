"""Print one of the README's two commands: `run` or `test`.

A command is the one-line `sh` block that follows the comment `<!-- command: NAME -->`.
"""

import re
import sys
from pathlib import Path


def command(name: str) -> str:
    """The command called `name`, as the README has it."""
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    found = re.search(rf"<!-- command: {name} -->\s*```sh\n(.+)\n```", readme)
    if found is None:
        raise SystemExit(f"expected a command named {name!r} in README.md; found none")
    return found.group(1)


if __name__ == "__main__":
    print(command(sys.argv[1]))
