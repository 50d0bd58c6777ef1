import functools
import os
import random
import re
import socket
import struct
import subprocess
import sys
import tracemalloc
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_cpp import llama_cpp as lib

from models import tokens as tokens_module
from models.llama import Model
from models.tokens import LONG_RUN, PRE_TOKENIZERS, Counter, counter_for
from models.vocabulary import MAX_TEXT, Raw, read
from tests.models.helpers import starter

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
KINDS = ("smollm", "gpt-2", "llama-bpe", "smaug-bpe", "qwen2", "qwen35", "tekken", "gpt-4o")
"""One pre-tokenizer of each sort: the others are other names for the same."""

SENTENCES = {
    "English": "I've told them we'll meet at the old mill, but it's raining; they'd rather stay. DON'T worry!",
    "German": "Über den Dächern der Stadt läuten früh die Glocken, während müde Bäcker größere Öfen schüren.",
    "French": "L'été dernier, nous avons traversé la forêt à pied jusqu'à l'auberge où l'on mangeait très bien.",
    "Spanish": "¿Dónde está el niño? Mañana lloverá en la montaña y volveremos más temprano, ¡qué lástima!",
    "Vietnamese": "Buổi sáng, người bán hàng rong đẩy chiếc xe nhỏ qua những con đường ướt mưa của thành phố.",
    "Russian": "Вчера вечером мы долго гуляли вдоль реки, и ветер приносил запах дыма с другого берега.",
    "Greek": "Το καΐκι έφυγε νωρίς το πρωί και οι ψαράδες τραγουδούσαν κάτω από έναν γαλανό ουρανό.",
    "Arabic": "في الصباح الباكر يفتح البائع دكانه الصغير ويسقي النباتات أمام الباب، ثم يشرب الشاي.",
    "Hebrew": "בערב ישבנו על המרפסת וסיפרנו זה לזה סיפורים ישנים על הים ועל הספינות שלא חזרו.",
    "Hindi": "बारिश रुकने के बाद बच्चे गली में निकले और काग़ज़ की नावें पानी में तैराने लगे।",
    "Thai": "ตอนเช้าแม่ค้าพายเรือมาขายขนมและผลไม้ริมคลอง เด็กๆ วิ่งมารอด้วยความดีใจ",
    "Korean": "아침 안개가 걷히자 산 아래 마을의 지붕들이 하나둘 모습을 드러내기 시작했다.",
    "Japanese": "雨がやんだあと、古い駅のホームには誰もいなくて、カタカナの看板だけが濡れて光っていた。",
    "Chinese": "清晨的市场已经很热闹，卖菜的老人一边整理摊位，一边和熟悉的客人聊着天气。",
}
CODE = '''def area(points: list[tuple[float, float]]) -> float:
    """Half the sum of the cross products; x' and y' are the next point's."""
    total = 0.0
    for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1]):
\t\tif x0 != x1 or not (y0 == y1):  # 12345.678e-09, 0xFF_FF
            total += x0*y1 - x1*y0
    return abs(total)/2 if len(points)>=3 else 0


int main(void) { for (;;) { printf("%-80s|\\n", s[i++] ? "yes" : "no"); } /* // */ }\r\n'''
AWKWARD = (
    "",
    " ",
    "\n",
    "  \n \n\t x",
    "a  b   c    d\n\n\n\ne \n",
    "1 22  333   4444    55555\t666666",
    "x1y22z333 ½ ⅷ ١٢٣ १२३ 一二三 Ⅷ²",
    "it's IT'S he'LL We'rE 'd 's'S'ſ 'K",
    "👨‍👩‍👧‍👦👩🏽‍🚀🏳️‍🌈🇩🇪 ☺️",
    "e\u0301a\u0308\u0301 \u0301x \u0301\u0301 ก็้า",
    "\x00\x01\x1b[0m\x7f\x80\x85\x9f\xa0\xad",
    "\ufeff\u200b\u200e\u202e\u2028\u2029\u3000 \u3000x\u3000",
    "a\rb\r\nc\n\rd\r\r\n\n\re",
    "-" * 80 + "\n" + "=" * 80 + "\n" + "*" * 79,
    "\n".join(" " * indent + "return x" for indent in range(81)),
    "<|im_start|>user\nhello<|im_end|>\n<|endoftext|></s>[INST]",
    "\U00016d40\U0001e5f1\u1c89\U000105c0 \U0001fae9\U0002ebf0\U000323b0\U0010fffd\uffff",
    "http://example.org/a/b?c=d&e=%20#f\n///\r\n!/\n/\n",
)


# --- what is compared ---


@functools.cache
def corpus() -> str:
    """Sentences, code, numbers, spaces and random words of many scripts: more than 200 kB."""
    chance = random.Random(9)
    words = [word for sentence in SENTENCES.values() for word in sentence.split()]
    ranges = [(0x21, 0x7F), (0xA1, 0x250), (0x370, 0x530), (0x590, 0x6FF), (0x900, 0xDFF), (0xE01, 0xEFF)]
    ranges += [(0x1100, 0x11FF), (0x1E00, 0x218F), (0x2190, 0x2BFF), (0x3041, 0x30FF), (0x4E00, 0x9FFF)]
    ranges += [(0xAC00, 0xD7A3), (0x300, 0x36F), (0x1F300, 0x1FAFF), (0x10000, 0x1044F), (0x20000, 0x200FF)]
    spaces = (" ", " ", " ", "  ", "\n", "\r\n", "\t", "\n\n", " \n  ", "\u00a0", "\u3000", "")
    parts = [*AWKWARD]
    for round_ in range(280):
        sentence = [*SENTENCES.values()][round_ % len(SENTENCES)]
        parts += (sentence, chance.choice(spaces), CODE if round_ % 9 == 0 else "", chance.choice(AWKWARD))
        for _ in range(45):
            kind = chance.random()
            if kind < 0.5:
                parts.append(chance.choice(words))
            elif kind < 0.65:
                parts.append(str(chance.randrange(10 ** chance.randint(1, 9))))
            elif kind < 0.75:
                parts.append("".join(chance.choices(".,;:!?'\"()[]{}<>/\\|@#$%^&*-+=_`~…—«»", k=chance.randint(1, 4))))
            else:
                low, high = chance.choice(ranges)
                parts.append("".join(chr(chance.randint(low, high)) for _ in range(chance.randint(1, 9))))
            parts.append(chance.choice(spaces))
    return "".join(parts)


def each_character() -> str:
    """Characters of all sorts next to letters, digits, spaces and quotes; of the ideographs one in fifty."""
    points = [
        point
        for point in range(0x110000)
        if not 0xD800 <= point < 0xE000
        and (point % 50 == 0 or unicodedata.category(chr(point)) not in ("Lo", "Cn", "Co"))
    ]
    return "".join(f"a{character}1{character} {character}'{character}s\n" for character in map(chr, points))


def byte_characters() -> list[str]:
    """The character that stands for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


@functools.cache
def all_pairs() -> list[str]:
    """Merges of any two bytes in a random order: whatever is cut at another place becomes other tokens."""
    merges = [f"{a} {b}" for a, b in product(byte_characters(), repeat=2)]
    random.Random(4).shuffle(merges)
    return merges


# --- files ---


def text_value(text: str | bytes) -> bytes:
    """A text behind its length."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def text_array(texts: Sequence[str | bytes]) -> bytes:
    """An array of texts with its type."""
    return struct.pack("<IIQ", 9, 8, len(texts)) + b"".join(map(text_value, texts))


def gguf(values: Sequence[tuple[str, bytes]]) -> bytes:
    """A GGUF without tensors; each value comes with its type."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + b"".join(text_value(key) + data for key, data in values)


def vocabulary(
    merges: Sequence[str],
    *,
    pre: str = "gpt-2",
    more: Sequence[tuple[str, int]] = (),
    tokens: Sequence[str] | None = None,
    name: str = "test",
    numbers: Sequence[tuple[str, int]] = (),
) -> list[tuple[str, bytes]]:
    """The keys of a byte-level vocabulary: bytes, what merges make, and more tokens with their types."""
    if tokens is None:
        made = dict.fromkeys(merge.replace(" ", "", 1) for merge in merges)
        tokens = [*byte_characters(), *(text for text in made if len(text) > 1)]
    texts = [*tokens, *(text for text, _type in more)]
    types = [NORMAL] * len(tokens) + [kind for _text, kind in more]
    return [
        ("general.architecture", struct.pack("<I", 8) + text_value("llama")),
        ("general.name", struct.pack("<I", 8) + text_value(name)),
        ("tokenizer.ggml.model", struct.pack("<I", 8) + text_value("gpt2")),
        ("tokenizer.ggml.pre", struct.pack("<I", 8) + text_value(pre)),
        ("tokenizer.ggml.tokens", text_array(texts)),
        ("tokenizer.ggml.merges", text_array(merges)),
        ("tokenizer.ggml.token_type", struct.pack(f"<IIQ{len(types)}i", 9, 5, len(types), *types)),
        *((f"tokenizer.ggml.{key}", struct.pack("<II", 4, value)) for key, value in numbers),
    ]


class Pair:
    """The engine's tokenizer and the counter of one file."""

    def __init__(self, path: Path) -> None:
        params = lib.llama_model_default_params()
        params.vocab_only = True
        self._handle = lib.llama_model_load_from_file(bytes(path), params)
        assert self._handle, "the engine does not take this file"
        self._model = Model.__new__(Model)
        self._model.vocab = lib.llama_model_get_vocab(self._handle)
        self.counter = counter_for(path, path.parent / "cache")

    def expected(self, text: str) -> list[int]:
        """The engine's tokens."""
        return self._model.tokenize(text, special=False)

    def agree(self, text: str) -> bool:
        """Both give the same tokens."""
        assert self.counter is not None
        expected = self.expected(text)
        return self.counter.encode(text) == expected and self.counter.count(text) == len(expected)

    def __del__(self) -> None:
        """Free the engine's part."""
        if self._handle:
            lib.llama_model_free(self._handle)


Make = Callable[[list[tuple[str, bytes]]], Pair]


@pytest.fixture
def make(tmp_path: Path, native_log: list[str]) -> Make:
    """Write a vocabulary, and open it in both ways."""
    assert native_log is not None
    numbers = count()

    def made(values: list[tuple[str, bytes]]) -> Pair:
        path = tmp_path / f"{next(numbers)}.gguf"
        path.write_bytes(gguf(values))
        return Pair(path)

    return made


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory, native_log: list[str]) -> Iterator[Callable[[str], Pair]]:
    """The vocabulary of all pairs with a pre-tokenizer; names for the same one get fewer pairs, which is quicker."""
    assert native_log is not None
    folder = tmp_path_factory.mktemp("pairs")

    @functools.cache
    def made(pre: str) -> Pair:
        path = folder / f"{pre}.gguf"
        path.write_bytes(gguf(vocabulary(all_pairs() if pre in KINDS else all_pairs()[::8], pre=pre)))
        return Pair(path)

    yield made
    made.cache_clear()


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Counter:
    """The counter of the starter model."""
    found = counter_for(starter(), tmp_path_factory.mktemp("tokens"))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def starters() -> Raw:
    """The starter's vocabulary."""
    return read(starter())


def first_difference(pair: Pair, text: str) -> str | None:
    """The first line after which the two disagree."""
    return next((line for line in re.findall(r"[^\n]*\n+|[^\n]+", text) if not pair.agree(line)), None)


# --- equality ---


def test_the_corpus_is_large_and_of_many_languages() -> None:
    """What the counter is compared on is not less than promised."""
    assert len(corpus().encode()) > 200_000
    assert all(sentence in corpus() for sentence in (*SENTENCES.values(), *AWKWARD, CODE))
    assert len(SENTENCES) >= 12


def test_the_starter_is_counted_as_the_engine_does(counter: Counter, model: Model) -> None:
    """The same tokens over the whole corpus, and over each of its lines."""
    for text in (corpus(), *AWKWARD, *corpus().splitlines(keepends=True)):
        assert counter.encode(text) == model.tokenize(text, special=False)
        assert counter.count(text) == len(model.tokenize(text, special=False))


def test_a_byte_without_a_token_is_dropped(counter: Counter, model: Model) -> None:
    """The starter has no token for some bytes, and neither the engine nor the counter gives one."""
    dropped = [chr(point) for point in range(0x20) if not model.tokenize(chr(point), special=False)]
    assert dropped
    for character in dropped:
        text = f"a{character}b {character}{character}"
        assert counter.encode(text) == model.tokenize(text, special=False)
        assert counter.count(text) == len(model.tokenize(text, special=False))


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_each_pre_tokenizer_cuts_where_the_engine_does(pre: str, paired: Callable[[str], Pair]) -> None:
    """With a token for any two bytes each border that is somewhere else would show."""
    pair = paired(pre)
    for text in AWKWARD:
        assert pair.agree(text), text
    lines = corpus().splitlines(keepends=True)
    step = 1 if pre in KINDS else 8
    for start in range(0, len(lines), 40 * step):
        text = "".join(lines[start : start + 40])
        assert pair.agree(text), first_difference(pair, text)


@pytest.mark.parametrize("pre", KINDS)
def test_each_sort_of_character_is_what_it_is_to_the_engine(pre: str, paired: Callable[[str], Pair]) -> None:
    """Letters, numbers, marks and spaces are those of the engine's version of Unicode, not of tiktoken's."""
    pair = paired(pre)
    text = each_character()
    for start in range(0, len(text), 1 << 17):
        part = text[start : start + (1 << 17)]
        assert pair.agree(part), first_difference(pair, part)


@pytest.mark.parametrize("pre", KINDS)
def test_real_merges_agree_with_each_pre_tokenizer(pre: str, make: Make, starters: Raw) -> None:
    """A vocabulary that was trained, with each sort of pre-tokenizer."""
    pair = make(vocabulary(starters.merges, pre=pre, tokens=starters.tokens))
    text = corpus()[:60_000]
    assert pair.agree(text), first_difference(pair, text)


@pytest.mark.parametrize("pre", KINDS)
def test_long_runs_of_spaces_agree(pre: str, paired: Callable[[str], Pair]) -> None:
    """What is cut by code of ours is cut where the engine cuts it, whatever stands around it."""
    pair = paired(pre)
    chance = random.Random(5)
    for _ in range(150):
        signs = chance.choice((" ", "\n", " \n", "\r\n", " \t\n\u3000\x85"))
        parts = []
        for _ in range(3):
            parts.append(
                chance.choice(("", "a", "5", "!", "/", "é", "!/", "\u0301", "漢", "'s", "x ", "١", "\U00016d40"))
            )
            parts.append("".join(chance.choices(signs, k=LONG_RUN + chance.randint(-2, 3))))
        text = "".join(parts) + chance.choice(("", "a", "5", "!", "/x", "\u0301"))
        assert pair.agree(text), [(len(part), part[:3]) for part in parts]


def test_runs_that_tiktoken_gives_up_at_are_counted(counter: Counter, capfd: pytest.CaptureFixture[str]) -> None:
    """A million of anything is counted, in linear time, and nothing is written to the terminal."""
    n = 1_000_000
    for text in (" " * n, "\n" * n + "x", "a" * n, "漢" * n, "!" * n, "\u0301" * n, "1" * n, " \n" * n, "'" * n):
        assert 0 < counter.count(text) <= 3 * n
    assert capfd.readouterr() == ("", "")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=80) | st.text("a1 '\n\r\t!s\u00a0é漢\u0301\x00/", max_size=40))
def test_random_text_agrees(text: str, counter: Counter, model: Model) -> None:
    """Any text at all."""
    assert counter.encode(text) == model.tokenize(text, special=False)
    assert counter.count(text) == len(counter.encode(text))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(), max_size=30))
def test_lone_surrogates_are_what_they_are_to_the_engine(text: str, counter: Counter, model: Model) -> None:
    """Half a character counts as the question mark that the engine reads."""
    text += "\ud83d\ude00 \udc80"
    assert counter.encode(text) == model.tokenize(text, special=False)


# --- merges ---


def grown(choices: list[tuple[int, int]], swaps: list[tuple[int, int]]) -> list[str]:
    """Merges of what the merges before make; then some of them change places."""
    texts, merges = ["a", "b", "c"], dict[str, None]()
    for first, second in choices:
        left, right = texts[first % len(texts)], texts[second % len(texts)]
        if len(left + right) < 9:
            texts.append(left + right)
            merges[f"{left} {right}"] = None
    listed = list(merges)
    for first, second in swaps if listed else ():
        i, j = first % len(listed), second % len(listed)
        listed[i], listed[j] = listed[j], listed[i]
    return listed


SOME = st.tuples(st.integers(0, 99), st.integers(0, 99))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    merges=st.builds(grown, st.lists(SOME, min_size=1, max_size=12), st.just([]) | st.lists(SOME, max_size=3)),
    words=st.lists(st.text("abc", min_size=2, max_size=7), max_size=4, unique=True),
    pre=st.sampled_from(("gpt-2", "llama-bpe")),
)
def test_any_list_of_merges_agrees_or_is_refused(merges: list[str], words: list[str], pre: str, make: Make) -> None:
    """Merges in any order, several for one token, before the ones they need: the same tokens, or no counter."""
    made = {merge.replace(" ", "") for merge in merges}
    pair = make(vocabulary(merges, pre=pre, more=[(word, NORMAL) for word in words if word not in made]))
    if pair.counter is not None:
        for n in range(1, 7):
            text = "\n".join(map("".join, product("abc", repeat=n)))
            assert pair.agree(text), first_difference(pair, text)
        assert pair.agree("abcab" * 9 + "aabbcc" * 9 + "aaabbbccc" * 9 + "".join(words) * 3)


def test_a_token_that_merges_never_come_to_is_never_made(make: Make) -> None:
    """Its bytes are merged in another way before, and those two may not be merged."""
    pair = make(vocabulary(["b c", "a b", "ab c"]))
    assert pair.expected("abc") == [97, 256]
    assert pair.agree("abc xabc abcabc ab")


def test_merges_of_a_trained_vocabulary_are_taken_in_their_order(make: Make) -> None:
    """Of two ways to merge, the one that comes first in the list counts, wherever it stands in the text."""
    pair = make(vocabulary(["b c", "a b", "ab c", "a bc"]))
    assert pair.agree("abc ab bc aabcc")
    assert pair.expected("abc") == [258]


def test_a_merge_that_comes_before_its_parts_is_followed(make: Make) -> None:
    """Lists made from ranks name all ways to a token, in the order of the tokens: parts may come later."""
    pair = make(vocabulary(["ab cd", "a b", "c d", "abcd e"]))
    assert pair.agree("abcd abcde abcdabcd cdab aabcdd")
    assert pair.expected("abcde") == [259]


def test_a_merge_without_a_token_is_refused(make: Make) -> None:
    """The engine then falls back to something that tiktoken has no way to say."""
    assert make(vocabulary(["a b"], tokens=byte_characters())).counter is None


def test_a_word_that_is_a_token_is_taken_whole(make: Make) -> None:
    """Where merges are ignored for whole words, a token that merges never make counts as a word, and only as one."""
    pair = make(vocabulary(["b c"], pre="llama-bpe", more=[("abcd", NORMAL)]))
    assert pair.expected("abcd") == [257]
    assert pair.agree("abcd abcd xabcd abcdabcd")


def test_a_whole_word_that_tiktoken_would_also_merge_is_refused(make: Make) -> None:
    """A token of two neighbours that the list does not merge would be merged inside longer words."""
    assert make(vocabulary(["a b", "c d"], pre="llama-bpe", more=[("abcd", NORMAL)])).counter is None


# --- tokens with a type ---


def test_control_tokens_in_a_text_are_text(make: Make) -> None:
    """Neither control nor unknown tokens are found in a message."""
    pair = make(vocabulary(all_pairs(), more=[("<|user|>", CONTROL), ("<unk>", UNKNOWN)]))
    assert pair.agree("a<|user|>b <unk>")
    assert 65_536 + 256 not in pair.expected("<|user|>")


def test_user_defined_tokens_are_found_first(make: Make) -> None:
    """They are cut out before all else, the longest first, wherever they stand."""
    more = [
        ("<tool>", USER_DEFINED),
        ("<tool>x", USER_DEFINED),
        ("  ", USER_DEFINED),
        ("    ", USER_DEFINED),
        ("→é", 4),
    ]
    pair = make(vocabulary(all_pairs(), pre="qwen2", more=more))
    for text in (
        "<tool>",
        "a<tool>xb<tool>",
        "   x     y\n  \n",
        "<tool><tool>x<tool",
        "caf→é é",
        " <tool>'s 12<tool>34",
    ):
        assert pair.agree(text), text
        assert max(pair.expected(text)) >= 65_536 + 256


def test_tokens_that_look_like_control_are_text_whatever_their_type(make: Make) -> None:
    """The engine overrides the type of well-known ends and of tokens for filling in."""
    more = [("<|im_end|>", USER_DEFINED), ("<|fim_prefix|>", USER_DEFINED), ("<|file_sep|>", USER_DEFINED)]
    pair = make(vocabulary(all_pairs(), more=more))
    assert pair.agree("a<|im_end|>b<|fim_prefix|>c<|file_sep|>")
    assert max(pair.expected("<|im_end|><|fim_prefix|>")) < 65_536 + 256


def test_a_token_for_filling_in_that_a_key_replaces_is_found(make: Make) -> None:
    """Where a key names another token for the purpose, the type is not overridden."""
    pair = make(vocabulary(all_pairs(), more=[("<|fim_prefix|>", USER_DEFINED)], numbers=[("fim_pre_token_id", 5)]))
    assert pair.agree("a<|fim_prefix|>b")
    assert pair.expected("<|fim_prefix|>") == [65_536 + 256]


def test_tokens_of_channels_are_always_found(make: Make) -> None:
    """The engine cuts them out whatever their type, and the end of a message with them where there are calls."""
    names = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>")
    pair = make(vocabulary(all_pairs(), pre="gpt-4o", more=[(name, CONTROL) for name in names]))
    assert pair.agree(" ".join(names) + "".join(names))
    assert 65_536 + 256 in pair.expected("<|channel|>")
    assert 65_536 + 260 in pair.expected("<|end|>")


@pytest.mark.parametrize(
    "values",
    [
        {"more": [("<fim_prefix>", USER_DEFINED), ("<|fim_prefix|>", USER_DEFINED)]},
        {"more": [("xab", USER_DEFINED), ("abx", USER_DEFINED)]},
        {"more": [("<x>", USER_DEFINED)], "name": "Phi-3 mini"},
    ],
    ids=["two for one purpose", "overlapping", "spaces are taken with them"],
)
def test_what_the_engine_does_not_define_is_refused(values: dict[str, list[tuple[str, int]]], tmp_path: Path) -> None:
    """Where the result is up to a hash table, a sort or a name, only the engine counts."""
    (tmp_path / "a.gguf").write_bytes(gguf(vocabulary(["a b"], **values)))  # type: ignore[arg-type]
    assert counter_for(tmp_path / "a.gguf", tmp_path) is None


# --- what is refused ---


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.model", "llama"),
        ("tokenizer.ggml.model", "bert"),
        ("tokenizer.ggml.pre", "default"),
        ("tokenizer.ggml.pre", "deepseek-v3"),
        ("tokenizer.ggml.pre", ""),
    ],
)
def test_other_tokenizers_are_left_to_the_engine(key: str, value: str, tmp_path: Path) -> None:
    """SPM, WPM and pre-tokenizers that nothing is proven about."""
    values = [(name, data) for name, data in vocabulary(["a b"]) if name != key]
    (tmp_path / "a.gguf").write_bytes(gguf([*values, (key, struct.pack("<I", 8) + text_value(value))]))
    assert counter_for(tmp_path / "a.gguf", tmp_path) is None


def test_what_is_no_file_is_none(tmp_path: Path) -> None:
    """Nothing, a folder, a pipe that nobody writes to, and a file of something else."""
    if hasattr(os, "mkfifo"):  # not on Windows
        os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").write_bytes(b"")
    for name in ("nothing", ".", "pipe", "text", "empty"):
        assert counter_for(tmp_path / name, tmp_path / "cache") is None


def damaged() -> Iterator[tuple[str, bytes]]:
    """Files that say something that cannot be."""
    whole = vocabulary(["a b"])
    tokens = dict(whole)["tokenizer.ggml.tokens"]
    huge = 1 << 62

    def changed(key: str, data: bytes) -> bytes:
        return gguf([(name, data if name == key else kept) for name, kept in whole])

    yield "huge array", changed("tokenizer.ggml.tokens", struct.pack("<IIQ", 9, 8, huge))
    yield "huge text", changed("tokenizer.ggml.tokens", struct.pack("<IIQQ", 9, 8, 1, huge) + b"x")
    yield "long text", changed("tokenizer.ggml.tokens", text_array(["x" * (MAX_TEXT + 1)]))
    yield "huge skipped text", changed("general.name", struct.pack("<IQ", 8, huge))
    yield "huge skipped array", changed("general.name", struct.pack("<IIQ", 9, 12, huge))
    yield "huge types", changed("tokenizer.ggml.token_type", struct.pack("<IIQ", 9, 5, huge))
    yield "few types", changed("tokenizer.ggml.token_type", struct.pack("<IIQi", 9, 5, 1, 1))
    yield "unknown type", changed("general.name", struct.pack("<I", 99))
    yield "array of arrays", changed("tokenizer.ggml.tokens", struct.pack("<IIQ", 9, 9, 3))
    yield "tokens as a number", changed("tokenizer.ggml.tokens", struct.pack("<II", 4, 3))
    yield "merges as numbers", changed("tokenizer.ggml.merges", struct.pack("<IIQ3i", 9, 5, 3, 1, 2, 3))
    yield "no merges", gguf([(name, data) for name, data in whole if not name.endswith("merges")])
    yield "pre as a number", changed("tokenizer.ggml.pre", struct.pack("<II", 4, 3))
    yield "no UTF-8", changed("tokenizer.ggml.tokens", text_array([b"\xff\xfe"]))
    yield "a token twice", changed("tokenizer.ggml.tokens", tokens.replace(text_value("b"), text_value("a"), 1))
    yield "a key twice", gguf([*whole, whole[-1]])
    yield "too many keys", b"GGUF" + struct.pack("<IQQ", 3, 0, huge)
    yield "version", b"GGUF" + struct.pack("<IQQ", 1, 0, 0)
    yield "nothing in it", gguf([])


@pytest.mark.parametrize(("data"), [pytest.param(data, id=name) for name, data in damaged()])
def test_a_damaged_file_is_none_in_little_memory(data: bytes, tmp_path: Path) -> None:
    """Whatever lengths it claims, nothing is raised and nothing large is allocated."""
    (tmp_path / "a.gguf").write_bytes(data)
    tracemalloc.start()
    try:
        assert counter_for(tmp_path / "a.gguf", tmp_path) is None
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_file_cut_anywhere_is_none(tmp_path: Path) -> None:
    """From the first byte to the last."""
    data = gguf(vocabulary(["a b"]))
    for length in [*range(400), *range(400, len(data), 37)]:
        (tmp_path / "a.gguf").write_bytes(data[:length])
        assert counter_for(tmp_path / "a.gguf", tmp_path) is None


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=6))
def test_changed_bytes_raise_nothing(places: list[tuple[int, int]], tmp_path: Path) -> None:
    """A file with other bytes in it gives a counter or none, never an error."""
    data = bytearray(gguf(vocabulary(["a b", "ab c"], more=[("<x>", USER_DEFINED)])))
    for place, value in places:
        data[place % len(data)] = value
    (tmp_path / "a.gguf").write_bytes(bytes(data))
    found = counter_for(tmp_path / "a.gguf", tmp_path / "cache")
    assert found is None or found.count("abc <x>") >= 0


# --- the cache, the network, threads ---


def test_a_second_start_reads_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was built once is not built again, and counts the same."""
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf(vocabulary(["a b", "ab c"], more=[("<x>", USER_DEFINED)])))
    first = counter_for(path, tmp_path / "cache")
    monkeypatch.setattr(tokens_module, "_read", lambda _path: pytest.fail("read again"))
    second = counter_for(path, tmp_path / "cache")
    assert first is not None
    assert second is not None
    assert first.encode("abc <x> é") == second.encode("abc <x> é")
    assert [place.stat().st_mode & 0o777 for place in (tmp_path / "cache").iterdir()] == [0o600]


def test_another_file_at_the_same_place_is_read_anew(tmp_path: Path) -> None:
    """The cache belongs to a file of a size and a time, not to a path."""
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf(vocabulary(["a b"])))
    first = counter_for(path, tmp_path / "cache")
    path.write_bytes(gguf(vocabulary(["a b", "ab c"])))
    second = counter_for(path, tmp_path / "cache")
    assert first is not None
    assert second is not None
    assert (first.count("abc"), second.count("abc")) == (2, 1)


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    """A cache file that is cut or changed anywhere counts for nothing."""
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf(vocabulary(["a b"])))
    assert counter_for(path, tmp_path / "cache") is not None
    [place] = (tmp_path / "cache").iterdir()
    whole = place.read_bytes()
    for data in (b"", whole[:-1], whole[:40], whole + b"x", bytes([*whole[:60], whole[60] ^ 1, *whole[61:]])):
        place.write_bytes(data)
        found = counter_for(path, tmp_path / "cache")
        assert found is not None
        assert found.count("ab") == 1
        assert place.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """Counting works without it."""
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf(vocabulary(["a b"])))
    assert counter_for(path, path / "no folder") is not None


def test_the_network_is_never_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No socket is opened and no name is looked up, from the file to the count."""
    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, lambda *_args, **_kwargs: pytest.fail("the network"))
    found = counter_for(starter(), tmp_path)
    assert found is not None
    assert found.count("hello world") == 2


def test_threads_may_share_a_counter(counter: Counter) -> None:
    """Eight threads count what one counts."""
    texts = [*AWKWARD, " " * 2000 + "x", *corpus().splitlines()[:200]]
    expected = list(map(counter.count, texts))
    with ThreadPoolExecutor(8) as threads:
        assert all(counts == expected for counts in threads.map(lambda _i: list(map(counter.count, texts)), range(16)))


def test_tiktoken_is_loaded_with_the_first_counter_only() -> None:
    """Importing the module, or the command line, does not wait for it; numpy is never needed."""
    script = (
        "import sys, pathlib, chatapp.cli, models.tokens; early = 'tiktoken' in sys.modules; "
        "made = models.tokens.counter_for(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])); "
        "print(early, made is not None, 'tiktoken' in sys.modules, 'numpy' in sys.modules, 'requests' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", script, str(starter()), os.devnull]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True", "False", "False"]
