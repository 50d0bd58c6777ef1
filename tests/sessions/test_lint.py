import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.lint import find_volatile, split_volatile

DATES = """2026-11-30
2026/11/30
2026.11.30.
2026-1-5
2026-11-30T12:30:00Z
20261130T123000Z
30.11.2026
30. 11. 2026
30/11/2026
11/30/2026
Nov 30 2026
November 30th, 2026
30 November 2026
30th of November 2026
Monday, 30. November 2026, 14:30 Uhr
30. März 2026
30 de noviembre de 2026
30 novembre 2026
30 ноября 2026
2026년 11월 30일
2026년 11월 30일 월요일
2026年11月30日
2026年11月30日(月)
２０２６年１１月３０日
令和8年11月30日"""

NOW = """Today is Monday.
Today is the 30th.
Today's date is November 30.
Current date: November 2026
The current time is 14:30.
current year: 2026
As of today, November 30
Date: 30.11.
Heute ist Montag.
Aujourd'hui, c'est lundi
Hoy es lunes
오늘은 11월 30일입니다.
오늘은 월요일입니다.
현재 시각: 14시 30분
今日は月曜日です
今天是11月30日
当前时间：14:30"""

COUNTERS = """This is request #123.
session 42
Session 42 of today
Request number 7
conversation no. 5
message_count: 17
요청 번호: 123
会话 42
リクエスト番号123
第3次会话"""

IDS = """550e8400-e29b-41d4-a716-446655440000
01ARZ3NDEKTSV4RRFFQ69G5FAV
d41d8cd98f00b204e9800998ecf8427e
0x9F86D081884C7D65
aGVsbG8gd29ybGQxMjM0NTY3ODkw
request_id: abc123
Your session id is 8f3a2b
nonce=77a1
timestamp: 1790000000"""

TEMPLATES = """{{now}}
{{ current_date }}
{{CURRENT_DATETIME}}
{{ now().strftime("%Y") }}
{{ strftime_now("%d %b %Y") }}
{date}
{ time }
${TODAY}
$(date)
$(date +%F)
$RANDOM
%DATE%
[current date]
strftime("%H:%M:%S")
datetime.now()"""

STABLE = """The firm has grown since 1998, most of all in June 2024.
Version 1.2.2003 and v2024.11.30 are out.
Call +49 30 1234567, 555-0123, 010-1234-5678 or 02-10-12-2034.
Knowledge cutoff: 2023-10-01
She was born on 1990-05-01.
Write dates in ISO format, e.g. 2026-11-30.
Write dates such as "30.11.2026" in full.
예: 2026년 11월 30일
Use the notation `2026-11-30` and the variable `{{now}}`.
Office hours are 9:00-17:00, and 14:30 is lunch.
See https://example.org/2024/11/30/550e8400-e29b-41d4-a716-446655440000
Matthew 3:16, a ratio of 16:9, port 8080, 192.168.10.20, 10.11.12.2013
The models gpt-4o-2024-08-06 and claude-3-5-sonnet-20241022.
Answer request 2 more times; a session 30 minutes long.
If today is a holiday, say so, and ask what today's date is.
The current time zone matters, and the time is short.
Return {"date": "string", "time": 3} for {name} and {{user}}; {update} too.
50.11.2026 and 2024-13-40 are no dates.
internationalization path/to/some/Very_Long_file_name_in_src/Main2.py
IBAN DE89370400440532013000, card 1234567890123456, color #FF00AA
Today we answer 3 questions, and you may ask 3 times.
Message 1 must be polite. Turn 1 too."""


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        (kinds, line)
        for kinds, lines in (
            ({"date"}, DATES),
            ({"now"}, NOW),
            ({"counter", "id"}, COUNTERS),
            ({"id", "now"}, IDS),
            ({"template"}, TEMPLATES),
        )
        for line in lines.splitlines()
    ],
)
def test_volatile_text_is_found(kinds: set[str], text: str) -> None:
    """Each notation is one finding, alone and inside a text, where the same place is named."""
    [alone] = find_volatile(text)
    assert alone.kind in kinds
    inside = f"You are kind.\n\n{text}\n\nBe brief."
    [found] = find_volatile(inside)
    assert inside[found.start : found.end] == found.text == alone.text
    assert found.reason


@pytest.mark.parametrize("text", STABLE.splitlines())
def test_stable_text_is_left_alone(text: str) -> None:
    """What stays the same from run to run is no finding."""
    assert find_volatile(text) == []


def test_code_is_an_example() -> None:
    """Between fences nothing is found, also where no second one follows; behind them it is."""
    assert find_volatile("```\nToday is Monday, 2026-11-30\n```\n") == []
    assert find_volatile("~~~ python\nprint('2026-11-30')") == []
    [found] = find_volatile("```\n2026-11-30\n```\n2026-11-29")
    assert found.text == "2026-11-29"


def test_a_date_with_its_words_is_one_finding() -> None:
    """Words, date and time belong together, and positions are those of the text."""
    text = "Be kind. Today's date is 2026-11-30 14:22. Be brief. It is request #4."
    first, second = find_volatile(text)
    assert (first.text, first.kind) == ("Today's date is 2026-11-30 14:22", "now")
    assert (second.text, text.index("request #4")) == ("request #4", second.start)


def test_sentences_with_findings_move_out() -> None:
    """The rest keeps its lines; what moved is a line each; a line of nothing else goes with its end."""
    text = "You are kind. Today is Monday. Be brief.\nRequest #12\n\nNever guess. Date: 2026-11-30\nEnd.\n"
    stable, volatile = split_volatile(text)
    assert stable == "You are kind. Be brief.\n\nNever guess. \nEnd."
    assert volatile == "Today is Monday.\nRequest #12\nDate: 2026-11-30"


def test_a_text_without_findings_stays() -> None:
    """Not even white space changes."""
    text = "  Be kind.\n\n"
    assert split_volatile(text) == (text, "")
    assert split_volatile("Today is Monday.") == ("", "Today is Monday.")


FRAGMENTS = st.sampled_from(
    [
        *"\n\n\n.!。 `~-:,#",
        *("```\n", "~~~\n", "e.g. ", "since ", "Today is ", "오늘은 ", "session ", "Monday", "42", "{{", "now", "}}"),
        *("2026-11-30", "30.11.", "2026", "年11月30日", "\u2028", "\r\n", "\r", "\x0b", "\x85", "https://x.org/"),
        *("Be kind. ", "Never guess.\n", "550e8400-e29b-41d4-a716-446655440000"),
    ]
)


@settings(max_examples=400)
@given(st.lists(FRAGMENTS | st.text(max_size=6), max_size=25).map("".join))
def test_nothing_is_lost_and_nothing_volatile_stays(text: str) -> None:
    """What stays has no findings, and both parts together are the text but for white space, each in its order."""
    stable, volatile = split_volatile(text)
    assert find_volatile(stable) == []

    def said(part: str) -> list[str]:
        return [char for char in part if not char.isspace()]

    assert Counter(said(stable)) + Counter(said(volatile)) == Counter(said(text))
    for part in (stable, volatile):
        rest = iter(said(text))
        assert all(char in rest for char in said(part))


@settings(max_examples=400)
@given(st.lists(FRAGMENTS | st.text(max_size=6), max_size=25).map("".join))
def test_findings_are_places_in_the_text(text: str) -> None:
    """They are in order, none overlaps the next, and each is its characters."""
    end = 0
    for found in find_volatile(text):
        assert end <= found.start < found.end
        assert text[found.start : found.end] == found.text
        end = found.end


@pytest.mark.parametrize(
    "piece", ["today ", "{{", "session ", "12:12:", "2026-11-", "`", "a_", "ab1-", "\n", "{a_", "e.g. "]
)
def test_long_texts_take_no_longer_than_they_are(piece: str) -> None:
    """Four times the text takes the rules a few times as long, not sixteen times."""

    def seconds(n: int) -> float:
        text = piece * (n // len(piece))
        began = time.process_time()
        find_volatile(text)
        return time.process_time() - began

    assert min(seconds(80_000) for _ in range(3)) < 9 * max(min(seconds(20_000) for _ in range(3)), 0.002)
