"""What volatile text looks like: dates, times, counters, ids and template variables, in many notations; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

Kind = Literal["date", "time", "now", "counter", "id", "template"]

REASONS: Mapping[Kind, str] = {
    "date": "a date",
    "time": "a time",
    "now": "what is true today only",
    "counter": "a counter",
    "id": "a random id",
    "template": "a variable for what changes",
}
"""What a finding is, in words that go before "changes from run to run"."""


@dataclass(frozen=True, slots=True)
class Span:
    """Characters from `start` up to `end`."""

    start: int
    end: int
    kind: Kind

    def through(self, end: int) -> Span:
        """Return the span, at least up to `end`."""
        return replace(self, end=max(self.end, end))

    def __lt__(self, other: Span) -> bool:
        return (self.start, -self.end) < (other.start, -other.end)


_MONTH = (
    r"(?:jan(?:uary|uar|vier)?|feb(?:ruary|ruar)?|f[ée]vrier|mar(?:ch|s|zo)?|märz|apr(?:il)?|avril|abril|may|mai|mayo|"
    r"june?|juni|juin|junio|jul[yi]?|juillet|julio|aug(?:ust)?|août|agosto|sept?(?:ember|embre|iembre)?|"
    r"o[ck]t(?:ober|obre|ubre)?|nov(?:ember|embre|iembre)?|de[cz](?:ember|iembre)?|décembre|"
    r"января|февраля|марта|апреля|мая|июня|июля|августа|сентября|октября|ноября|декабря)\.?"
)
_WEEKDAY = (
    r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b|(?:montag|dienstag|mittwoch|donnerstag|freitag|"
    r"samstag|sonntag|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|lunes|martes|miércoles|jueves|viernes|sábado|"
    r"domingo)\b|[월화수목금토일]요일|[月火水木金土日]曜日|(?:星期|周|週)[一二三四五六日天]"
)
_YEAR = r"(?:19|20)\d\d"
_ORDINAL = r"(?:st|nd|rd|th|\.)?"
_CLOCK = r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?(?:\s?[ap]\.?m\b\.?)?"
_ZONE = r"(?:\s?(?:Z|UTC|GMT|[CPEM][SD]?T|CET|CEST|KST|JST|Uhr)\b|\s?[+-]\d\d:?\d\d\b)?"
_CJK_CLOCK = r"\d{1,2}\s?[시時时点點](?:\s?\d{1,2}\s?[분分](?:\s?\d{1,2}\s?[초秒])?)?"
_THEN = (
    r"(?:(?:T|[\s,]{1,3}|\s(?:at|um|à|-)\s)(?:(?:오전|오후|午前|午後|上午|下午)\s?)?"
    rf"(?:{_CLOCK}{_ZONE}|{_CJK_CLOCK}))?"
)
_EDGE = r"(?<![\w/.\-])"
_DATE = (
    rf"(?:(?:{_WEEKDAY}),?\s{{1,2}})?(?:"
    rf"{_EDGE}(?P<y1>{_YEAR})(?P<s1>[-/.])(?P<m1>\d{{1,2}})(?P=s1)(?P<d1>\d{{1,2}})(?![\w/-]|\.\d)"
    rf"|{_EDGE}(?P<y6>{_YEAR})-(?P<m6>\d\d)-(?P<d6>\d\d)(?=T\d)"
    rf"|{_EDGE}(?P<y2>{_YEAR})(?P<m2>\d\d)(?P<d2>\d\d)T\d{{4,6}}Z?\b"
    rf"|{_EDGE}(?P<d3>\d{{1,2}})(?P<s3>[-/.]\s?)(?P<m3>\d{{1,2}})(?P=s3)(?P<y3>{_YEAR})(?![\w/-]|\.\d)"
    rf"|{_EDGE}(?P<d4>\d{{1,2}}){_ORDINAL}[\s-](?:of\s|de\s)?{_MONTH}(?:\sde|,)?[\s-]{_YEAR}\b"
    rf"|\b{_MONTH}\s(?P<d5>\d{{1,2}}){_ORDINAL},?\s{_YEAR}\b"
    rf"|(?:(?<!\d)\d{{4}}\s?[년年]|(?:令和|平成|民國|民国)\s?\d{{1,3}}\s?年)\s?\d{{1,2}}\s?[월月]\s?\d{{1,2}}\s?[일日号號]"
    r")"
    rf"(?:\s?\((?:{_WEEKDAY}|[월화수목금토일月火水木金土])\))?{_THEN}"
)
_DATES = re.compile(_DATE, re.IGNORECASE)

_TIMES = re.compile(r"(?<![\w:.])(?:[01]?\d|2[0-3]):[0-5]\d:[0-5]\d(?:[.,]\d{1,9})?(?![\w:])", re.IGNORECASE)

_NOW = (
    r"(?:\btoday(?:'s|’s)?(?:\s(?:date|day))?(?:\sis)?|\b(?:the\s)?(?:current|actual)\s(?:local\s|system\s)?"
    r"(?:date(?:\s?(?:and|&|/)\s?time)?|day|time(?:stamp)?|year|weekday)(?:\sis)?|\bit\sis\s(?:now|currently)|\bthe\s(?:date|time)\sis(?:\snow)?"
    r"|\bas\sof\s(?:today,?)?|\bnow:|^[ \t*#-]{0,6}(?:date|time|timestamp|datum|uhrzeit)(?=\s?[:=])"
    r"|\bheute\sist|\b(?:heutiges|aktuelles)\sdatum(?:\sist)?|\baktuelle\s(?:zeit|uhrzeit)(?:\sist)?|\bes\sist\sjetzt"
    r"|\bnous\ssommes|\baujourd(?:'|’)hui(?:,?\sc(?:'|’)est)?|\bdate\sdu\sjour|\bhoy\ses|\bfecha\sactual|\bсегодня"
    r"|오늘(?:은|\s?날짜(?:는)?)?|현재\s?(?:시각|시간|날짜|일시)(?:[은는])?|지금은|今日(?:は|の日付は)|現在(?:の)?(?:時刻|日時|日付)(?:は)?|本日は"
    r"|今天(?:是|的日期是)?|(?:当前|當前|目前|现在|現在)的?(?:时间|時間|日期|时刻)(?:是|为|為)?|现在是|現在是)"
)
_VALUE = (
    rf"(?:{_WEEKDAY}|{_DATE.replace('(?P<', '(?P<v')}|{_CLOCK}{_ZONE}|{_CJK_CLOCK}|{_MONTH}\s\d{{1,4}}\b"
    rf"|\d{{1,2}}{_ORDINAL}\s(?:of\s)?{_MONTH}|\d{{1,2}}(?:st|nd|rd|th)\b|\d{{1,2}}\s?[월月]\s?\d{{1,2}}\s?[일日号號]"
    rf"|\d{{1,2}}\.\s?\d{{1,2}}\.(?!\d)|{_YEAR}\b|\d{{10,13}}\b)"
).replace("(?P=s", "(?P=vs")
_NOWS = re.compile(
    rf"{_NOW}[\s:=,：，*-]{{0,6}}(?:(?:the|on|der|den|le|el|now)\s)?{_VALUE}"
    rf"(?:[\s,]{{1,3}}(?:the\s|at\s|and\s|um\s)?{_VALUE.replace('(?P<v', '(?P<w').replace('(?P=vs', '(?P=ws')})?",
    re.IGNORECASE | re.MULTILINE,
)

_COUNTED = (
    r"(?:request|session|conversation|invocation|chat|message|msg|turn|run|call|ticket|job|build|attempt|visit|anfrage|"
    r"sitzung|requête|sesión)"
)
_COUNTERS = re.compile(
    rf"(?<![\w-]){_COUNTED}\s?(?:counter|count|number|no\.?|nr\.?|num)?\s?[:=]?\s?(?:\#|№)\s?\d+\b"
    rf"|(?<![\w-]){_COUNTED}[\s_-](?:counter|count|number|no\.|nr\.?|num)(?:\sis)?\s?[:=]?\s?\d+\b"
    # A bare number is a counter where no noun follows that it counts ("session 30 minutes").
    r"|(?<![\w-])(?:request|session|conversation|invocation|sitzung)\s\d+(?=\s*(?:$|[,;:)\]]|\.(?:\s|$)|of\b|from\b|for\b|with\b))"
    r"|(?:요청|세션|대화)\s?(?:번호)?\s?[:#：]?\s?\d+(?:번|호)?(?![\d.]|\s?[개명분시건회])"
    r"|(?:リクエスト|セッション|会話|请求|請求|会话|會話)(?:番号|编号|編號|号)?[:#：\s]{0,2}\d+(?![\d.]|\s?[个個件分回名])"
    r"|第\s?\d+\s?(?:次|回目?の?)(?:请求|請求|会话|會話|对话|リクエスト|セッション|会話)",
    re.IGNORECASE | re.MULTILINE,
)

_LABELLED = re.compile(
    r"(?<![\w-])(?:(?:request|session|conversation|chat|trace|span|correlation|run|message|transaction|build)"
    r"[\s_-]?id|nonce|cache[\s_-]?buster|random[\s_-]seed|timestamp|epoch|unix[\s_-]time)"
    r"(?:\s(?:is|of))?\s{0,2}[:=#]?\s{0,2}[\"'<]?(?=[\w-]{0,100}\d)[\w-]{3,100}",
    re.IGNORECASE,
)
_UUIDS = re.compile(r"(?<![\w-])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![\w-])", re.IGNORECASE)
_ULIDS = re.compile(r"(?<![\w-])[0-7][0-9A-HJKMNP-TV-Z]{25}(?![\w-])")
_HEX = re.compile(r"(?<![\w-])(?:0x)?(?:[0-9a-f]{16,}|[0-9A-F]{16,})(?![\w-])")
_BASE64 = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{22,}={0,2}(?![\w+/=-])")

_WHEN = (
    r"(?:now|today|date|time|datetime|timestamp|weekday|year|month|day|hour|minute|second|clock|strftime|strftime_now|"
    r"utcnow|uuid|guid|nonce|random|counter|epoch|date_string|localtime|gmtime)"
)
_CHANGING = rf"(?:[a-z]+[_.\s-])*(?:{_WHEN})(?:[_.-][a-z]+)*"
_TEMPLATES = re.compile(
    rf"\{{\{{[\s$.-]*{_CHANGING}(?![\w])[^{{}}\n]{{0,120}}\}}\}}"
    rf"|(?<![{{$])\{{\s?\$?{_CHANGING}(?:\(\))?(?:[:!|][^{{}}\n]{{0,60}})?\s?\}}(?!\}})"
    rf"|\$\{{\s?{_CHANGING}(?:\(\))?[^{{}}\n]{{0,60}}\}}"
    r"|\$\((?:date|uuidgen|hostname)\b[^()\n]{0,120}\)"
    r"|\$(?:DATE|TIME|NOW|TODAY|RANDOM|TIMESTAMP)\b|%(?:DATE|TIME|RANDOM)%"
    r"|\[\[?(?:current[ _-]?)?(?:date|time|datetime|timestamp|now)\]\]?|<(?:current[ _-]?)(?:date|time|datetime)>"
    r"|\b(?:strftime(?:_now)?|datetime\.(?:now|utcnow|today)|date\.today|Date\.now|time\.time|new\sDate)\s?\([^()\n]{0,120}\)",
    re.IGNORECASE,
)


def spans(text: str) -> Iterator[Span]:
    """Yield what looks volatile wherever it stands, in no order; spans may overlap."""
    rules: tuple[tuple[Kind, re.Pattern[str], Callable[[re.Match[str]], bool]], ...] = (
        ("now", _NOWS, _always),
        ("date", _DATES, _is_date),
        ("time", _TIMES, _always),
        ("counter", _COUNTERS, _always),
        ("id", _LABELLED, _always),
        ("id", _UUIDS, _always),
        ("id", _ULIDS, _is_mixed),
        ("id", _HEX, _is_mixed),
        ("id", _BASE64, _is_random),
        ("template", _TEMPLATES, _always),
    )
    for kind, pattern, is_one in rules:
        for match in pattern.finditer(text):
            if is_one(match):
                yield Span(*match.span(), kind)


def _always(_match: re.Match[str]) -> bool:
    return True


def _is_date(match: re.Match[str]) -> bool:
    """True unless a day or month is none; of two numbers before a year, either may be the month."""
    found = {name: int(value) for name, value in match.groupdict().items() if value and value.isdigit()}
    days = [value for name, value in found.items() if name[0] == "d"]
    months = [value for name, value in found.items() if name[0] == "m"]
    if any(not 1 <= day <= 31 for day in [*days, *months]):
        return False
    return not months or min(days + months if "d3" in found else months) <= 12


def _is_mixed(match: re.Match[str]) -> bool:
    """True for letters and digits in a mix: neither a word nor a number, nor one with a country before it (IBAN)."""
    token = match.group().removeprefix("0x")
    return any(char.isdigit() for char in token) and sum(char.isalpha() for char in token) >= 3


def _is_random(match: re.Match[str]) -> bool:
    """True for what no language spells: small and capital letters and digits that take turns."""
    token = match.group().rstrip("=")
    kinds = ["0" if char.isdigit() else "a" if char.islower() else "A" if char.isupper() else "-" for char in token]
    turns = sum(one != other for one, other in pairwise(kinds))
    return {"0", "a", "A"} <= set(kinds) and turns >= len(token) // 3 and kinds.count("-") <= len(token) // 8
