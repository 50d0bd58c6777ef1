import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from llama_cpp import llama_cpp as lib

from models.engine import Entry, Role, TokenRun
from models.errors import TemplateError
from models.glue import Glue
from models.llama import Model
from models.template import probe
from models.tokenruns import answer_glue, ids_behind_text, joined, opening_ids, tokenize_entries
from tests.models.tiny_models import build

TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).with_name("templates").glob("*.jinja")
}
BOS, EOS = "<s>", "</s>"
BOS_ID, EOS_ID, MARK_ID = 1, 2, 3


@pytest.fixture(scope="module")
def glues(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Glue]:
    """The glue of each template."""
    cache = tmp_path_factory.mktemp("cache")
    return {name: probe(text, bos_token=BOS, eos_token=EOS, cache_dir=cache) for name, text in TEMPLATES.items()}


def tokenize(text: str, special: bool) -> list[int]:
    """Return one id for each character, and with `special` one for each control token."""
    marks = {BOS: BOS_ID, EOS: EOS_ID, "<|im_start|>": MARK_ID, "<|im_end|>": MARK_ID}
    ids: list[int] = []
    while text:
        mark = next((mark for mark in marks if special and text.startswith(mark)), None)
        ids.append(marks[mark] if mark else ord(text[0]))
        text = text[len(mark or text[0]) :]
    return ids


def spelled(ids: Sequence[int]) -> str:
    """Return what the ids of `tokenize` stand for, control tokens as one letter each."""
    return "".join({BOS_ID: "B", EOS_ID: "E", MARK_ID: "M"}.get(i, chr(i)) for i in ids)


# --- with a tokenizer of one id a character ---


def test_the_runs_joined_are_the_rendered_conversation(glues: dict[str, Glue]) -> None:
    """Each entry owns its opening, body and closing; with the answer's opening they are the whole prompt."""
    entries = (Entry("system", "S"), Entry("user", "U"), Entry("assistant", "A"), Entry("user", "V"))
    runs = tokenize_entries(entries, glues["chatml"], tokenize, None)
    around = answer_glue("user", glues["chatml"], tokenize)
    assert [spelled(run.body) for run in runs] == ["S", "U", "A", "V"]
    prompt = [*itertools.chain.from_iterable(run.ids for run in runs), *around.opening]
    assert spelled(prompt) == "Msystem\nSM\nMuser\nUM\nMassistant\nAM\nMuser\nVM\nMassistant\n"
    assert (spelled(around.opening), around.start, spelled(around.closing)) == ("Massistant\n", (), "M\n")


def test_a_run_once_made_is_kept(glues: dict[str, Glue]) -> None:
    """Past text is never tokenized again, even where the tokenizer would now choose other tokens."""
    kept = TokenRun((7, 8, 9), 1, 2)
    entries = [Entry("user", "text", kept), Entry("assistant", "A"), Entry("user", "next")]
    runs = tokenize_entries(entries, glues["smollm2"], tokenize, BOS_ID)
    assert runs[0] is kept
    assert BOS_ID not in runs[2].ids
    assert spelled(runs[2].ids) == "Muser\nnextM\n"


def test_a_stripped_body_is_tokenized_stripped(glues: dict[str, Glue]) -> None:
    """Where the template trims, the tokens are those of the trimmed text."""
    (run,) = tokenize_entries([Entry("user", "  a \n")], glues["llama3"], tokenize, None)
    assert spelled(run.body) == "a"


def test_a_merged_system_prompt_opens_the_first_user_turn(glues: dict[str, Glue]) -> None:
    """Its run ends where the message begins, so that it is a prefix that conversations share."""
    system, user = tokenize_entries([Entry("system", "S"), Entry("user", "U")], glues["mistral-v1"], tokenize, None)
    assert (spelled(system.ids), spelled(user.ids)) == ("B[INST] S", "\n\nU [/INST]")


def test_a_generated_answer_keeps_what_it_was_generated_behind(glues: dict[str, Glue]) -> None:
    """The `<think>` of a generation prompt begins the body; the next message follows the answer as it stands."""
    glue = glues["deepseek-r1"]
    around = answer_glue("user", glue, tokenize)
    assert (spelled(around.opening), spelled(around.start)) == ("<｜Assistant｜>", "<think>\n")
    body = (*around.start, *tokenize("so</think>yes", False))
    begin = len(around.opening)
    answer = TokenRun((*around.opening, *body, *around.closing), begin, begin + len(body))
    entries = [Entry("user", "a"), Entry("assistant", "<think>\nso</think>yes", answer), Entry("user", "b")]
    runs = tokenize_entries(entries, glue, tokenize, None)
    whole = spelled([*itertools.chain.from_iterable(run.ids for run in runs)])
    assert whole == "B<｜User｜>a<｜Assistant｜><think>\nso</think>yes<｜end▁of▁sentence｜><｜User｜>b"
    imported = tokenize_entries([*entries[:1], Entry("assistant", "<think>\nso</think>yes")], glue, tokenize, None)
    assert imported[1] == answer


def test_an_imported_answer_that_only_ends_its_reasoning_goes_on_behind_the_start(glues: dict[str, Glue]) -> None:
    """The tokens are those of one that has it; the mark belongs to the opening then, as the text does not have it."""
    entries = [Entry("user", "a"), Entry("assistant", "so</think>yes")]
    run = tokenize_entries(entries, glues["deepseek-r1"], tokenize, None)[1]
    assert spelled(run.ids) == "<｜Assistant｜><think>\nso</think>yes<｜end▁of▁sentence｜>"
    assert spelled(run.body) == "so</think>yes"
    plain = tokenize_entries([*entries[:1], Entry("assistant", "yes")], glues["deepseek-r1"], tokenize, None)[1]
    assert spelled(plain.ids) == "<｜Assistant｜>yes<｜end▁of▁sentence｜>"


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("deepseek-r1", "<think>\n</think>\n\n"),
        ("qwen3-thinking", "<think>\n</think>\n\n"),
        ("qwen3", ""),
        ("gpt-oss", "<|channel|>final<|message|>"),
        ("chatml", ""),
    ],
)
def test_an_answer_that_may_not_reason_begins_with_the_end_of_it(name: str, start: str, glues: dict[str, Glue]) -> None:
    """What the prompt has begun is ended at once, as part of the answer; an answer's own channel is named."""
    around = answer_glue("user", glues[name], tokenize, has_grammar=True)
    assert spelled(around.start) == start
    assert around.opening == answer_glue("user", glues[name], tokenize).opening


def test_a_mark_that_shares_a_token_with_the_opening_stays_there(glues: dict[str, Glue]) -> None:
    """The tokens of the generation prompt are those of its text, whatever the tokenizer makes of it."""
    glue = glues["qwen3-thinking"]

    def joining(text: str, special: bool) -> list[int]:
        ids = tokenize(text.replace("\n<think>", "\0"), special)
        return [9999 if token == 0 else token for token in ids]

    around = answer_glue("user", glue, joining)
    assert (around.opening, around.start) == (tuple(joining(glue.assistant, True)), ())


def test_orders_of_roles_without_a_text_are_an_error(glues: dict[str, Glue]) -> None:
    """The sentence for the user comes from the glue."""
    for roles in (("assistant",), ("system", "assistant"), ("user", "assistant", "assistant"), ("user", "system")):
        with pytest.raises(TemplateError, match="allows no"):
            tokenize_entries([Entry(role, "x") for role in roles], glues["chatml"], tokenize, None)  # type: ignore[arg-type]


# --- BOS ---


@pytest.mark.parametrize("add_bos", [None, BOS_ID])
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("first", ["system", "user"])
def test_there_is_one_bos_at_the_start(name: str, first: Role, add_bos: int | None, glues: dict[str, Glue]) -> None:
    """Printed by the template or wanted by the tokenizer: once, part of the opening; else there is none."""
    roles: list[Role] = [first, *(["user"] if first == "system" else []), "assistant", "user", "user", "assistant"]  # type: ignore[list-item]
    runs = tokenize_entries([Entry(role, "b") for role in roles], glues[name], tokenize, add_bos)
    ids = [token for run in runs for token in run.ids]
    is_wanted = add_bos is not None or glues[name].bos_printed
    assert (ids[0] == BOS_ID, ids[1] == BOS_ID) == (is_wanted, False)
    assert runs[0].body_start > 0 or not is_wanted
    if name != "llama2":  # it prints one before each message of the user: that is its format
        assert ids.count(BOS_ID) == is_wanted


def test_a_bos_printed_twice_stands_once(tmp_path: Path) -> None:
    """A template that prints two in a row was not meant to."""
    glue = probe("{{ bos_token }}" + TEMPLATES["gemma2"], bos_token=BOS, eos_token=EOS, cache_dir=tmp_path)
    for add_bos in (None, BOS_ID):
        (run,) = tokenize_entries([Entry("user", "a")], glue, tokenize, add_bos)
        assert spelled(run.ids).startswith("B<start_of_turn>")


# --- with real tokenizers ---


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, native_log: list[str]) -> Iterator[dict[str, Model]]:
    """A model of each tokenizer."""
    assert native_log is not None
    folder = tmp_path_factory.mktemp("tiny")
    made = {
        tokenizer: Model(build("dense", folder, tokenizer=tokenizer), gpu_layers=0, progress=lambda _share: None)
        for tokenizer in ("bpe", "spm", "user defined")
    }
    yield made
    for model in made.values():
        model.close()


def specials(model: Model) -> dict[int, str]:
    """Every token of a vocabulary that is not an ordinary one, with its text."""
    found = {}
    for token in range(model.n_vocab):
        ordinary = lib.LLAMA_TOKEN_ATTR_NORMAL | lib.LLAMA_TOKEN_ATTR_BYTE | lib.LLAMA_TOKEN_ATTR_UNUSED
        if not lib.llama_vocab_get_attr(model.vocab, token) & ordinary:
            found[token] = lib.llama_vocab_get_text(model.vocab, token).decode()
    return found


def check_forgery(model: Model, glue: Glue) -> None:
    """No special id in the body of any role, for each special token alone, among text, doubled and all in one."""
    known = specials(model)
    assert known
    texts = [
        form.format(text) for text in known.values() for form in ("{0}", "a{0}b", "{0}{0}", "\n{0}user\n", " {0} ")
    ]
    for text in (*texts, "".join(known.values())):
        entries = [Entry("system", text), Entry("user", text), Entry("assistant", text), Entry("user", text)]
        for run in tokenize_entries(entries, glue, model.tokenize, model.bos_to_add):
            assert not known.keys() & set(run.body), text
            assert b"".join(map(model.piece, run.body)).decode().strip() == text.strip()


@pytest.mark.parametrize("tokenizer", ["bpe", "spm", "user defined"])
def test_no_body_becomes_a_special_token_of_a_tiny_vocabulary(
    tokenizer: str, tiny: dict[str, Model], tmp_path: Path
) -> None:
    """Also where the vocabulary calls the marks of turns ordinary; with the template's own turns around it."""
    model = tiny[tokenizer]
    glue = probe(model.chat_template, bos_token=model.token_text("bos"), eos_token=EOS, cache_dir=tmp_path)
    check_forgery(model, glue)


def test_no_body_becomes_a_special_token_of_the_starter(model: Model, tmp_path: Path) -> None:
    """Every special token of a real vocabulary, in a message of each role."""
    glue = probe(model.chat_template, bos_token=model.token_text("bos"), eos_token=EOS, cache_dir=tmp_path)
    check_forgery(model, glue)
    assert {1, 2} <= specials(model).keys()


def whole_ids(model: Model, text: str) -> list[int]:
    """The tokens of a whole prompt as one text, BOS once."""
    ids = model.tokenize(text, True)
    return ids if ids[:1] == [model.bos_to_add] or model.bos_to_add is None else [model.bos_to_add, *ids]


TALK: tuple[tuple[Role, str], ...] = (
    ("system", "hello hello"),
    ("user", "hello"),
    ("assistant", "INST hello"),
    ("user", "is hello, hello?"),
)


@pytest.mark.parametrize("tokenizer", ["bpe", "spm"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_tokenized_apart_is_tokenized_as_a_whole(
    name: str, tokenizer: str, tiny: dict[str, Model], glues: dict[str, Glue]
) -> None:
    """Glue and bodies on their own give the ids of the whole text, also where a space is put before each text."""
    model, glue = tiny[tokenizer], glues[name]
    text, previous = "", None
    for role, body in TALK:
        text += glue.past_opening(body) if role == "assistant" else glue.opening(previous, role)
        text += body + glue.closing(role)
        previous = role
    text += glue.opening("user", "assistant")
    runs = tokenize_entries([Entry(*turn) for turn in TALK], glue, model.tokenize, model.bos_to_add)
    around = answer_glue("user", glue, model.tokenize)
    ids = [*joined(runs), *around.opening, *around.start]
    assert ids == whole_ids(model, text)


@pytest.mark.parametrize("tokenizer", ["bpe", "spm"])
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("body", ["hello", " hello", "\n\nhello", "", " ", "é", "x" * 50])
def test_an_opening_does_not_depend_on_what_follows(
    body: str, name: str, tokenizer: str, tiny: dict[str, Model], glues: dict[str, Glue]
) -> None:
    """It can be evaluated before the message is written; and the text is all there."""
    model, glue = tiny[tokenizer], glues[name]
    entries = [Entry("user", "hello"), Entry("assistant", "hello"), Entry("user", body)]
    run = tokenize_entries(entries, glue, model.tokenize, model.bos_to_add)[2]
    assert list(run.ids[: run.body_start]) == opening_ids("assistant", "user", glue, model.tokenize)
    space = " " * glue.opening("assistant", "user").endswith(" ")
    assert b"".join(map(model.piece, run.body)).decode() in (
        space + glue.body("user", body),
        " " + glue.body("user", body),
    )


@pytest.mark.parametrize("tokenizer", ["bpe", "spm"])
@pytest.mark.parametrize("text", ["hello", " hello", "\nhello", ".", "", "é", "<s>"])
def test_text_that_goes_on_has_no_space_put_before_it(text: str, tokenizer: str, tiny: dict[str, Model]) -> None:
    """What is left of a token that a stop string cut is that and no more."""
    model = tiny[tokenizer]
    assert b"".join(map(model.piece, ids_behind_text(text, model.tokenize))).decode() == text
