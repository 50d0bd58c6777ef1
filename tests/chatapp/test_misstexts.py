"""Why KV could not be reused, in words of any language."""

import re
from collections.abc import Iterator

import pytest

from chatapp import misstexts, texts
from chatapp.misstexts import because, reason_text
from models import misses

REASONS = (
    misses.NOTHING,
    misses.TOO_SMALL,
    misses.EVICTED,
    misses.VANISHED,
    misses.OFF,
    misses.cut(1118, "edited text"),
    misses.cut(4010, "template"),
    misses.cut(12, "context limit"),
    misses.ends(7),
    misses.no_restore_point(512),
    misses.no_restore_point(0),
    misses.other_settings(["threads", "model"]),
    misses.damaged("checksum {of} a block"),
    misses.unreadable("Permission denied"),
    misses.self_test_failed("rows differ:\n3 of 12"),
)


@pytest.fixture(autouse=True)
def _english_again() -> Iterator[None]:
    yield
    texts.use("en")


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_is_known(reason: str) -> None:
    """Each reason has a text that can be translated; in English it is the reason itself."""
    assert any(pattern.fullmatch(reason) for pattern in misstexts._PATTERNS.values())
    assert reason_text(reason) == reason


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_of_statistics_is_known(reason: str) -> None:
    """They leave out numbers."""
    counted = re.sub(r"\d[\d,]*", "…", reason)
    assert any(pattern.fullmatch(counted) for pattern in misstexts._PATTERNS.values())


@pytest.mark.parametrize("language", texts.languages())
@pytest.mark.parametrize("reason", REASONS)
def test_a_clause_says_no_less_than_the_reason(reason: str, language: str) -> None:
    """Numbers and details are in every language."""
    texts.use(language)
    for said in (because(reason), reason_text(reason)):
        assert re.findall(r"\d[\d,]*", said) == re.findall(r"\d[\d,]*", reason)
        assert "{n}" not in said
        assert "{detail}" not in said


def test_what_is_not_known_comes_as_it_is() -> None:
    """A reason of a later version is shown, not swallowed."""
    assert reason_text("moved away {n}") == "moved away {n}"
    assert because("moved away {n}") == "what was stored could not be used (moved away {n})"
