from pathlib import Path

from benchmarks.branches import measure
from tests.models.helpers import starter


async def test_branches_of_a_real_conversation_evaluate_only_what_differs(tmp_path: Path) -> None:
    """Answering once more, editing, forking and going on: never more than the new message, its glue and one token."""
    rows = await measure(starter(), tmp_path, n_tokens=400)
    assert [row.verb for row in rows] == ["answer once more", "edit the last question", "fork and ask", "go on"]
    for row in rows[:3]:
        assert row.evaluated <= row.new + 1, row
        assert row.n_history > 200, row
    assert rows[3].evaluated <= 1
