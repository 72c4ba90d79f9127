"""The README's programs run as printed, and its words match what they print."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_programs_run_as_printed(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    printed = capsys.readouterr().out
    assert printed.startswith("converged-feasible:")
    assert "all 3 clients are within the tolerance 0.1" in printed
    assert "SoftmaxSGM(alpha=10.0)" in printed
