from hypothesis import given
from hypothesis import strategies as st

from models.engine import TokenRun, TurnStats
from sessions.rows import ids_to_blob, new_session_id, stats_to_json, to_message


@given(st.lists(st.integers(0, 2**45), min_size=2, max_size=9, unique=True))
def test_ids_sort_by_time(milliseconds: list[int]) -> None:
    """Later conversations have greater ids of the same length."""
    ids = [new_session_id(ms / 1000) for ms in sorted(milliseconds)]
    assert [key[:10] for key in ids] == sorted(key[:10] for key in ids)
    assert {len(key) for key in ids} == {16}


@given(st.lists(st.integers(0, 2**32 - 1)), st.none() | st.floats(0, 1e9), st.none() | st.text())
def test_token_ids_and_stats_come_back(ids: list[int], ttft_s: float | None, reason: str | None) -> None:
    """A message read from its row has the exact ids and stats that were written."""
    stats = TurnStats(ttft_s=ttft_s, miss_reason=reason)
    row = {
        "id": 1,
        "session_id": "s",
        "role": "assistant",
        "status": "complete",
        "created_at": 0.0,
        "text": "x",
        "parent_id": None,
        "body_start": 0,
        "body_end": len(ids),
        "ids": ids_to_blob(ids),
        "stats": stats_to_json(stats),
        "attachments": None,
    }
    message = to_message(row)
    assert (message.run, message.stats) == (TokenRun(tuple(ids), 0, len(ids)), stats)


def test_stats_of_other_versions_are_read() -> None:
    """A field that is unknown here is ignored, one that is missing is unknown."""
    row = dict.fromkeys(("id", "session_id", "role", "status", "created_at", "text", "parent_id", "ids", "attachments"))
    assert to_message({**row, "stats": '{"ttft_s": 1.5, "later": 1}'}).stats == TurnStats(ttft_s=1.5)
