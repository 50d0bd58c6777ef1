"""Interface texts: every language is whole, and the language is that of the reader."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from chatapp import texts
from chatapp.config import Settings, language
from tools import texts as tool


@pytest.fixture(autouse=True)
def _english_again() -> Iterator[None]:
    yield
    texts.use("en")


@pytest.mark.parametrize("path", sorted(tool.LOCALE.glob("*/LC_MESSAGES/chatapp.po")), ids=lambda path: path.parts[2])
def test_a_language_has_every_text(path: Path) -> None:
    """Nothing is missing, nothing is left over, the fields in braces are those of the English text, all is compiled."""
    assert list(tool.problems(path, tool.collected(tool.SOURCES))) == []


def test_there_is_korean() -> None:
    """English and Korean are there, another language is English."""
    assert texts.languages() == ("en", "ko")
    texts.use("ko_KR")
    assert texts.language() == "ko_KR"
    assert texts.tr("Search") == "검색"
    texts.use("xx")
    assert (texts.language(), texts.tr("Search")) == ("en", "Search")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "en"),
        ({"LANG": "ko_KR.UTF-8"}, "ko_KR"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "ko_KR.UTF-8"}, "ko_KR"),
        ({"LANG": "ko_KR.UTF-8", "LC_ALL": "C.UTF-8"}, "en"),
        ({"LANG": "de_DE@euro", "LANGUAGE": "ko:de"}, "ko"),
        ({"LANG": "C", "LANGUAGE": "ko"}, "en"),
    ],
)
def test_the_language_of_the_locale(environ: dict[str, str], expected: str) -> None:
    """As gettext looks for it: the messages' locale, LANGUAGE before it unless that is C."""
    assert language(Settings(Path(), Path()), environ) == expected
    assert language(Settings(Path(), Path(), language="pt_BR"), environ) == "pt_BR"


def test_the_tool_finds_what_is_wrong(tmp_path: Path) -> None:
    """A missing text, one that is left over, and one with another field are named."""
    sources = tmp_path / "code"
    sources.mkdir()
    code = 'tr("one")\ntr_later("two")\ntr_n("{n} cat", "{n} cats", 2).format(n=2)\ntr("at {place}")\n'
    (sources / "a.py").write_text(code)
    path = tmp_path / "ko" / "LC_MESSAGES" / "chatapp.po"
    path.parent.mkdir(parents=True)
    path.write_text(
        'msgid "one"\nmsgstr "하나"\n\nmsgid "old"\nmsgstr "옛"\n\nmsgid "at {place}"\nmsgstr "{where}에"\n'
    )
    found = "\n".join(tool.problems(path, tool.collected(sources)))
    for part in ("not translated: 'two'", "not translated: \"('{n} cat'", "not used any more: 'old'", "other fields"):
        assert part in found
    tool.update(path, tool.collected(sources))
    assert "old" not in path.read_text()
    assert path.with_suffix(".mo").read_bytes() == tool.compiled(tool._read(path))
