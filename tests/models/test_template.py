import datetime
import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from models import renderer
from models import template as module
from models.engine import Role
from models.errors import ModelError, TemplateError
from models.formats import known_formats, template_of
from models.glue import MERGED_SYSTEM_END, Glue
from models.reasoning import family_in
from models.template import derive, probe

TEMPLATES = {
    path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).with_name("templates").glob("*.jinja")
}
"""Re-created by the public syntax of the model families they are named for; `one-sided` is made up."""

CHATML, GEMMA3, MISTRAL = TEMPLATES["chatml"], TEMPLATES["gemma3"], TEMPLATES["mistral-v1"]
LOOP = "{% for i in range(90000) %}"
BOS, EOS = "<s>", "</s>"
TODAY = datetime.date(2026, 3, 14)

NOTES = {
    "own-text": "begins every conversation with",
    "default": "Without a system prompt the template puts its own",
    "clock": "asks for the date: it is told 2026-03-14",
    "merged": "has no system prompt: one is put into the first message",
    "alternates": "wants each message answered",
    "opening": "opens earlier answers differently",
    "reasoning": "stays in the prompt unless stripped",
    "format": "in the named format",
}
"""A short name for each note, and words by which it is known."""


@dataclass(frozen=True)
class Rules:
    """What is expected of a template: which notes, in order, and what it trims, as initials of role and ends."""

    notes: str = ""
    trims: str = ""


ALL_WHITE = "u:ww a:ww"
EXPECTED = {
    "chatml": Rules(),
    "deepseek-r1": Rules("reasoning"),
    "gemma2": Rules("merged alternates", ALL_WHITE),
    "gemma3": Rules("alternates", ALL_WHITE),
    "glm4": Rules("opening reasoning", "a:ww"),
    "gpt-oss": Rules("own-text clock opening reasoning"),
    "llama2": Rules("merged alternates", ALL_WHITE),
    "llama3": Rules("", f"{ALL_WHITE} s:ww"),
    "llama3.2": Rules("own-text clock", f"{ALL_WHITE} s:ww"),
    "mistral-v1": Rules("merged alternates"),
    "mistral-v3": Rules("merged alternates", "a:ww"),
    "one-sided": Rules("", "u:nw a:ln s:ln"),
    "phi4": Rules(),
    "qwen2.5": Rules("default"),
    "qwen3": Rules("reasoning"),
    "qwen3-thinking": Rules("reasoning"),
    "smollm2": Rules("default"),
}


def each(body: str) -> str:
    """Return a template that names each role and then does `body`."""
    return (
        "{% for m in messages %}[{{ m.role }}]" + body + "{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )


def compiled(template: str) -> renderer.Renderer:
    """Return the renderer of a harmless template."""
    return renderer.Renderer(template, bos_token=BOS, eos_token=EOS, today=TODAY.isoformat())


def derived(template: str) -> Glue:
    """Return the glue of a harmless template, rendered in this process."""
    here = compiled(template)

    def render(turns: Sequence[tuple[Role, str]], generation_prompt: bool) -> str:
        rendering = here.render(as_messages(turns), add_generation_prompt=generation_prompt)
        if rendering["error"] is not None:
            raise TemplateError(f"The model's chat template raises an error: {rendering['error'].removesuffix('.')}.")
        return str(rendering["text"])

    return derive(render, bos_token=BOS, family=family_in(template))


def as_messages(turns: Sequence[tuple[Role, str]]) -> list[dict[str, str]]:
    """Return a conversation as templates see it."""
    return [{"role": role, "content": body} for role, body in turns]


def probed(template: str | None, cache: Path, *, bos: str = BOS, chat_format: str | None = None) -> Glue:
    """Return the glue as a model's load finds it."""
    return probe(template, bos_token=bos, eos_token=EOS, cache_dir=cache, chat_format=chat_format, today=lambda: TODAY)


def refusal(template: str, cache: Path) -> str:
    """Return why a template is refused."""
    with pytest.raises(TemplateError) as caught:
        probed(template, cache)
    return str(caught.value)


def joined(glue: Glue, turns: Sequence[tuple[Role, str]]) -> str:
    """Return the text of a conversation as the glue builds it, generation prompt included."""
    text, previous = "", None
    for role, body in turns:
        opening = glue.opening(previous, role)
        if role == "assistant":
            opening = glue.past_opening(body)
        text += opening + glue.body(role, body) + glue.closing(role)
        previous = role
    return text + glue.opening(previous, "assistant")


def rendered(name: str, turns: Sequence[tuple[Role, str]]) -> str:
    """Return what the template prints for a conversation, generation prompt included."""
    rendering = RENDERERS[name].render(as_messages(turns), add_generation_prompt=True)
    assert rendering["error"] is None
    return str(rendering["text"])


def as_ruled(glue: Glue, turns: Sequence[tuple[Role, str]]) -> list[tuple[Role, str]]:
    """Return the conversation that the template is to print where the rules put another in place of the user's."""
    ruled: list[tuple[Role, str]] = []
    merged = ""
    for role, text in turns:
        if role == "system" and not glue.supports_system:
            merged = glue.body("system", text) + MERGED_SYSTEM_END
            continue
        body = merged + glue.body("user", text) if merged else text
        merged = ""
        if ruled and ruled[-1][0] == role == "user" and glue.user_user is None:
            ruled.append(("assistant", ""))
        ruled.append((role, body))
    return ruled


GLUES = {name: derived(text) for name, text in TEMPLATES.items()}
RENDERERS = {name: compiled(text) for name, text in TEMPLATES.items()}


@pytest.fixture(scope="module")
def glues(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Glue]:
    """The glue of each template, probed in the real renderer process."""
    cache = tmp_path_factory.mktemp("cache")
    return {name: probed(text, cache) for name, text in TEMPLATES.items()}


# --- the rules, template by template ---


def test_each_template_has_its_rules() -> None:
    """No template without an expectation, none expected that is not there."""
    assert EXPECTED.keys() == TEMPLATES.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_template_has_the_expected_notes(name: str, glues: dict[str, Glue]) -> None:
    """Each deviation from what the user or the template would have is named in one sentence, and no other."""
    notes = glues[name].notes
    assert [short_name(note) for note in notes] == EXPECTED[name].notes.split()
    assert glues[name].supports_system == ("merged" not in EXPECTED[name].notes)
    assert all(note.isprintable() and note.endswith(".") and len(note) <= 100 for note in notes)


def short_name(note: str) -> str:
    """Return which of `NOTES` it is."""
    (name,) = [name for name, words in NOTES.items() if words in note]
    return name


@pytest.mark.parametrize("name", EXPECTED)
def test_a_template_trims_what_is_expected(name: str, glues: dict[str, Glue]) -> None:
    """Which ends of which bodies lose all white space, line breaks or nothing."""
    trims = [f"{role[0]}:{left[0]}{right[0]}" for role, left, right in glues[name].trimmed]
    assert trims == EXPECTED[name].trims.split()


BODY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda body: "</think>" not in body
)
ANSWER = BODY.filter(str.strip)
TURNS = st.lists(st.tuples(BODY, st.none() | ANSWER), min_size=1, max_size=5)


@pytest.mark.parametrize("name", TEMPLATES)
@given(system=st.none() | BODY, pairs=TURNS)
def test_the_glue_equals_the_template_on_any_conversation(
    name: str, system: str | None, pairs: list[tuple[str, str | None]]
) -> None:
    """With and without system prompt, answered or not: what the template prints, but for the two stated rules."""
    glue = GLUES[name]
    turns: list[tuple[Role, str]] = [] if system is None else [("system", system)]
    for question, answer in pairs:
        turns += [("user", question)] if answer is None else [("user", question), ("assistant", answer)]
    if turns[-1][0] == "assistant":
        turns.append(("user", "last"))
    if system is not None and not glue.supports_system:
        assume(system.strip() and pairs[0][0].strip())  # what is left of nothing is trimmed with what it is merged with
    assert joined(glue, turns) == rendered(name, as_ruled(glue, turns))


@pytest.mark.parametrize("name", TEMPLATES)
def test_forty_turns_are_what_the_template_prints(name: str) -> None:
    """Nothing changes in a long conversation."""
    turns: list[tuple[Role, str]] = [("system", "S"), ("user", "first")]
    for turn in range(40):
        turns += [("assistant", f"answer {turn}"), ("user", f"question {turn}")]
    assert joined(GLUES[name], turns) == rendered(name, as_ruled(GLUES[name], turns))


def test_the_renderer_process_gives_what_this_process_gives(glues: dict[str, Glue]) -> None:
    """The pipe between the processes changes nothing."""
    assert {name: replace(glue, frozen=None) for name, glue in glues.items()} == GLUES


# --- the rules, one by one ---


def test_a_default_system_block_stands_before_a_first_user() -> None:
    """The system block nobody wrote belongs to the opening of a first user message, and only there."""
    default = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert GLUES["smollm2"] == Glue(
        bos_token=BOS,
        first_user=f"<|im_start|>system\n{default}<|im_end|>\n<|im_start|>user\n",
        answer_user="<|im_start|>user\n",
        user_close="<|im_end|>\n",
        assistant="<|im_start|>assistant\n",
        past_assistant="<|im_start|>assistant\n",
        assistant_close="<|im_end|>\n",
        user_user="<|im_start|>user\n",
        first_system="<|im_start|>system\n",
        system_close="<|im_end|>\n",
        system_user="<|im_start|>user\n",
    )
    quoted = "You are a helpful AI assistant named Sm…"
    assert GLUES["smollm2"].notes == (f"Without a system prompt the template puts its own: “{quoted}”.",)


def test_a_default_system_block_is_quoted_in_part() -> None:
    """A long one is cut, and marks and line breaks in it are not shown."""
    (note, *_) = GLUES["gpt-oss"].notes
    assert note == "The template begins every conversation with: “You are ChatGPT, a large language model…”."


def test_llama3_prints_bos_and_trims() -> None:
    """A BOS printed by the template and stripped bodies of all roles are both noticed."""
    glue = GLUES["llama3"]
    assert (glue.bos_printed, GLUES["chatml"].bos_printed) == (True, False)
    assert glue.first_system.startswith(BOS)
    assert glue.body("user", " x\n") == "x"
    assert glue.system_close == "<|eot_id|>"


def test_one_side_is_trimmed_on_that_side() -> None:
    """White space at the end, line breaks at the beginning: the other end stays."""
    glue = GLUES["one-sided"]
    assert (glue.body("user", " x \n"), glue.body("assistant", "\n\n x\n")) == (" x", " x\n")


@pytest.mark.parametrize("name", ["gemma2", "mistral-v1", "mistral-v3"])
def test_without_a_system_role_the_prompt_opens_the_first_message(name: str) -> None:
    """System prompt, blank line, message: as templates do that merge it themselves."""
    glue = GLUES[name]
    assert not glue.supports_system
    merged = rendered(name, [("user", "Be brief.\n\nHello")])
    assert joined(glue, [("system", "Be brief."), ("user", "Hello")]) == merged
    assert joined(glue, [("system", "S"), ("user", "U")]).replace("S\n\nU", "U") == joined(glue, [("user", "U")])


def test_why_there_is_no_system_role_is_known() -> None:
    """It raises, it moves the prompt to the newest message, or it drops it."""
    ignoring = derived(each("{{ m.content }}").replace("in messages", "in messages if m.role != 'system'"))
    assert [
        GLUES["gemma2"].system_refusal,
        GLUES["mistral-v3"].system_refusal,
        ignoring.system_refusal,
    ] == [
        "The model's chat template raises an error: System role not supported.",
        "The model's chat template rewrites earlier turns or changes their texts.",
        "The model's chat template drops, repeats or reorders messages.",
    ]


def test_gemma3_holds_the_system_prompt_in_the_first_user_turn() -> None:
    """A system prompt that the template merges itself is glue like any other, and keeps its white space."""
    glue = GLUES["gemma3"]
    assert (glue.first_system, glue.system_close, glue.system_user) == ("<s><start_of_turn>user\n", "", "\n\n")


def test_an_unanswered_message_is_followed_by_an_empty_answer() -> None:
    """Where the template raises for two messages in a row; elsewhere they stand as it prints them."""
    turns: list[tuple[Role, str]] = [("user", "a"), ("user", "b")]
    assert joined(GLUES["mistral-v1"], turns) == "<s>[INST] a [/INST]</s>[INST] b [/INST]"
    assert joined(GLUES["chatml"], turns) == rendered("chatml", turns)


def test_orders_that_no_template_prints_are_named() -> None:
    """An answer to nothing, two answers in a row, a system prompt in the middle."""
    for previous, role, place in (
        (None, "assistant", "no assistant message at the start"),
        ("assistant", "assistant", "no assistant message right after an answer"),
        ("system", "assistant", "no assistant message right after a system prompt"),
        ("user", "system", "no system message right after a message"),
    ):
        with pytest.raises(TemplateError, match=place):
            GLUES["chatml"].opening(previous, role)  # type: ignore[arg-type]


THOUGHT = "thought\n</think>\n\nanswer"


@pytest.mark.parametrize(
    ("name", "answer", "dropped", "kept"),
    [
        ("deepseek-r1", THOUGHT, "\n\nanswer", f"<think>\n{THOUGHT}"),
        ("deepseek-r1", f"<think>{THOUGHT}", "\n\nanswer", f"<think>{THOUGHT}"),
        ("glm4", f"<think>{THOUGHT}", "\n<think></think>\nanswer", f"<think>{THOUGHT}"),
        ("qwen3-thinking", THOUGHT, "answer", f"<think>\n{THOUGHT}"),
        ("qwen3", f"<think>\n{THOUGHT}", "answer", f"<think>\n{THOUGHT}"),
        ("chatml", f"<think>{THOUGHT}", f"<think>{THOUGHT}", f"<think>{THOUGHT}"),
    ],
)
def test_reasoning_in_earlier_answers_is_kept(name: str, answer: str, dropped: str, kept: str) -> None:
    """Where the template has only the answer, the prompt has the reasoning before it, and nothing else differs."""
    turns: list[tuple[Role, str]] = [("user", "a"), ("assistant", answer), ("user", "b")]
    printed, ours = rendered(name, turns), joined(GLUES[name], turns)
    assert printed.count(dropped) == ours.count(kept) == 1
    assert ours == printed.replace(dropped, kept)


@pytest.mark.parametrize(
    ("name", "generated", "past"),
    [
        ("deepseek-r1", "<｜Assistant｜><think>\n", "<｜Assistant｜>"),
        ("gpt-oss", "<|start|>assistant", "<|start|>assistant<|channel|>final<|message|>"),
        ("glm4", "<|assistant|>", "<|assistant|>\n<think></think>\n"),
        ("mistral-v3", "", " "),
        ("chatml", "<|im_start|>assistant\n", "<|im_start|>assistant\n"),
    ],
)
def test_the_generation_prompt_opens_an_answer(name: str, generated: str, past: str) -> None:
    """All of it belongs to the answer written behind it; one from elsewhere is opened like the template's past."""
    glue = GLUES[name]
    assert (glue.opening("user", "assistant"), glue.past_opening("from elsewhere")) == (generated, past)


# --- the clock ---


CLOCK = each("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}{{ m.content }}")


def told(cache: Path, *, days: int, template: str = CLOCK) -> Glue:
    """Return the glue as it is found some days later."""
    day = TODAY + datetime.timedelta(days=days)
    return probe(template, bos_token=BOS, eos_token=EOS, cache_dir=cache, today=lambda: day)


def test_the_day_of_the_first_use_is_told_for_a_month(tmp_path: Path) -> None:
    """All conversations of a month begin with the same text, whatever the hour."""
    first = told(tmp_path, days=0)
    assert (first.first_user, first.frozen) == ("[user]2026-03-14 12:00:00", "2026-03-14")
    assert told(tmp_path, days=29) == first
    assert told(tmp_path, days=30).frozen == "2026-04-13"
    assert told(tmp_path, days=31).frozen == "2026-04-13"


def test_a_day_that_has_not_come_is_not_told(tmp_path: Path) -> None:
    """A clock that was wrong and is set back does not leave its day behind."""
    told(tmp_path, days=5)
    assert told(tmp_path, days=0).frozen == "2026-03-14"


def test_a_template_that_asks_for_no_time_is_told_none(tmp_path: Path) -> None:
    """It is probed once, for good."""
    assert told(tmp_path, days=0, template=CHATML) == told(tmp_path, days=1000, template=CHATML)
    assert told(tmp_path, days=0, template=CHATML).frozen is None


# --- known formats ---


def test_a_model_without_a_template_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """Never a guess: one sentence that lists what can be named."""
    with pytest.raises(ModelError, match=r"has no chat template.*alpaca, chatml.*zephyr\.$"):
        probed(None, tmp_path)


@pytest.mark.parametrize("name", known_formats())
def test_a_known_format_is_a_template_that_passes(name: str, tmp_path: Path) -> None:
    """Each can be named for a model without template, and says so in a note."""
    glue = probed(None, tmp_path, chat_format=name)
    assert [short_name(note) for note in glue.notes] == ["format"] + ["merged"] * (not glue.supports_system)
    turns: list[tuple[Role, str]] = [("user", "a"), ("user", "b"), ("assistant", "c"), ("user", "d")]
    rendering = compiled(template_of(name)).render(as_messages(turns), add_generation_prompt=True)
    assert joined(glue, turns) == rendering["text"]


def test_a_named_format_stands_in_for_a_template(tmp_path: Path) -> None:
    """Also for a model file that has one, and without a trace in what is remembered of the format's own template."""
    glue = probed("{% bad %}", tmp_path, chat_format="chatml")
    assert glue.chat_format == "chatml"
    assert probed(template_of("chatml"), tmp_path).chat_format is None


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    """The sentence lists them."""
    with pytest.raises(TemplateError, match="no chat format 'x'; choose one of alpaca, "):
        probed(None, tmp_path, chat_format="x")


def test_chatml_by_name_is_chatml_by_template() -> None:
    """A format gives the glue of the template it is named for."""
    assert derived(template_of("chatml")) == GLUES["chatml"]


def test_the_page_on_prompts_tells_every_rule() -> None:
    """Each format that can be named, each note and the limits of the renderer stand in docs/prompts.md."""
    page = (Path(__file__).parents[2] / "docs" / "prompts.md").read_text(encoding="utf-8")
    headings = {words.split(":")[0].removesuffix(" with").split(" and ")[0] for words in NOTES.values()}
    told = [*known_formats(), *headings, f"{module._TIME_LIMIT_S:g} s", f"{module._FROZEN_DAYS} days"]
    assert [words for words in told if words not in page] == []


# --- what a template may use ---


def test_tags_of_the_transformers_library_are_known(tmp_path: Path) -> None:
    """Loop controls, the generation block and its JSON filter work as where the templates come from."""
    template = (
        "{% for m in messages %}{% if m.role == 'none' %}{% continue %}{% endif %}"
        "{{ {'<': m.role} | tojson }}"
        "{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"
        "{% if add_generation_prompt %}{{ {'<': 'assistant'} | tojson }}{% endif %}"
    )
    glue = probed(template, tmp_path)
    assert glue.assistant == '{"<": "assistant"}'


def test_a_closing_that_depends_on_what_follows_goes_to_the_next_opening() -> None:
    """An end mark printed only after the last message is not part of the conversation that goes on."""
    glue = derived(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if loop.last and m.role == 'assistant' %}#"
        "{% else %};{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert (glue.assistant_close, glue.answer_user) == ("", ";[user]")


def test_a_mark_of_the_newest_message_goes_to_the_generation_prompt() -> None:
    """What is printed behind a message only while nothing follows it is no part of the message."""
    glue = derived(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ '#' if loop.last and m.role == 'user' }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert (glue.user_close, glue.assistant, glue.past_assistant) == ("", "#[assistant]", "[assistant]")
    assert [short_name(note) for note in glue.notes] == ["opening"]


# --- templates that are refused ---


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (each("{{ loop.revindex }}{{ m.content }}"), "rewrites earlier turns"),
        (each("{{ '!' if loop.length > 9 }}{{ m.content }}"), "rewrites earlier turns of long conversations"),
        (each("{{ m.content }}").replace("messages", "messages[-1:]"), "drops, repeats or reorders messages"),
        (each("{{ m.content }}").replace("messages", "messages | reverse"), "drops, repeats or reorders"),
        (each("{{ m.content }}{{ m.content }}"), "drops, repeats or reorders messages"),
        (each("{{ m.content | lower }}"), "drops, repeats or reorders messages"),
        (each("{{ m.content | replace('{', '') }}"), "changes their texts"),
        (each("{{ m.content | escape }}"), "changes their texts"),
        (each("{{ m.content.strip(' ') }}"), "white space in messages in an irregular way"),
        (each("{{ m.content if loop.last else m.content.strip() }}"), "in an irregular way"),
        (each("{{ range(99) | random }}{{ m.content }}"), "rewrites earlier turns"),
    ],
)
def test_a_template_that_cannot_be_appended_to_is_refused(template: str, reason: str, tmp_path: Path) -> None:
    """One short sentence says why, and nothing is remembered."""
    message = refusal(template, tmp_path)
    assert reason in message
    assert message.startswith("The model's chat template ")
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no\nluck\x1b[2J') }}", "raises an error: no luck [2J."),
        (each("{{ raise_exception('tired') if loop.index > 4 }}{{ m.content }}"), "raises an error: tired."),
        ("{{ messages[0].content.nothing.at.all }}", "raises an error: "),
        ("{% if %}", "is not valid: "),
        ("{{ ''.__class__.__mro__ }}", "raises an error: access to attribute '__class__'"),
        ("{{ ('' | attr('__class__')).__mro__ }}", "raises an error: access to attribute '__class__'"),
        ("{{ cycler.__init__.__globals__.os }}", "raises an error: access to attribute '__init__'"),
        ("{{ '{0.__class__.__base__.__subclasses__}'.format('') }}", "raises an error: "),
        ("{{ self._TemplateReference__context }}", "drops, repeats or reorders messages"),
        ("{% include '/etc/passwd' %}", "raises an error: "),
        (f"{LOOP}{LOOP}{{% endfor %}}{{% endfor %}}", "takes longer than 0.5 s."),
        (
            f"{{% if messages | length > 4 %}}{LOOP}{LOOP}{{% endfor %}}{{% endfor %}}{{% endif %}}" + CHATML,
            "takes longer",
        ),
        ("{% set n = 10 ** 9 %}{{ 7 ** n }}", "takes longer than 0.5 s."),
        ("{{ range(10 ** 18) | list }}", "raises an error: "),
        ("{% set s = 'x' %}{{ (s * 9000000000) | length }}", "needs more than 1 GiB of memory"),
        ("{% set s = 'x' %}{{ s * 900000 }}", "longer than 262,144 characters"),
        ("{{ lipsum(n=90000) }}", "takes longer than 0.5 s."),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "raises an error: RecursionError"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "is not valid: RecursionError"),
        ("{{ strftime_now('%Y' * 10 ** 8) }}", ""),
    ],
)
def test_a_hostile_template_is_refused_in_one_sentence(
    template: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the template, is short and printable, and ends; the renderer ends at its limit."""
    monkeypatch.setattr(module, "_TIME_LIMIT_S", 0.5 if not reason or reason.startswith("takes longer") else 20.0)
    message = refusal(template, tmp_path)
    assert reason in message
    assert "model's chat template" in message
    assert message.isprintable()
    assert len(message) < 300
    assert message.endswith(".")
    assert not list(tmp_path.rglob("*.json"))


def test_the_time_limit_leaves_room_for_the_start() -> None:
    """A refusal takes the limit and the start of a process; both together are to stay below 2.5 s."""
    assert module._TIME_LIMIT_S <= 2.0


def test_a_long_error_text_is_cut(tmp_path: Path) -> None:
    """What a template says about itself is untrusted: at most 200 characters of it are passed on."""
    message = refusal("{{ raise_exception('z' * 5000) }}", tmp_path)
    assert message == "The model's chat template raises an error: " + "z" * 200 + "."


def test_a_renderer_that_cannot_start_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Python to run, loading a model fails with a sentence and no traceback."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    assert "cannot start" in refusal(CHATML, tmp_path)


def test_a_renderer_that_breaks_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renderer that ends early, here for lack of its own file, is reported with its last words."""
    monkeypatch.setattr(module, "_RENDERER", tmp_path / "gone.py")
    assert "broke: " in refusal(CHATML, tmp_path)


# --- the cache ---


def no_process(*_args: object, **_options: object) -> None:
    """Stand in for subprocess.run where nothing may be started."""
    raise AssertionError("a process was started")


def test_a_known_template_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second load reads the glue from the cache folder, equal in every field."""
    first = probed(GEMMA3, tmp_path)
    monkeypatch.setattr(subprocess, "run", no_process)
    assert probed(GEMMA3, tmp_path) == first
    assert [path.suffix for path in (tmp_path / "templates").iterdir()] == [".json"]


def test_other_tokens_are_another_template(tmp_path: Path) -> None:
    """The cache is keyed by the BOS and EOS texts too."""
    first = probed(MISTRAL, tmp_path)
    other = probed(MISTRAL, tmp_path, bos="<bos>")
    assert (first.first_user, other.first_user) == ("<s>[INST] ", "<bos>[INST] ")


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "foreign", "deep", "binary"])
def test_a_damaged_cache_file_counts_for_nothing(damage: str, tmp_path: Path) -> None:
    """Whatever stands in the cache file, the glue is found anew and the file is whole again."""
    glue = probed(CHATML, tmp_path)
    (path,) = (tmp_path / "templates").iterdir()
    whole = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "cut": whole[: len(whole) // 2],
            "changed": whole.replace(b"assistant\\n", b"assistent\\n"),
            "foreign": json.dumps({"glue": {}, "sha256": 3}).encode(),
            "deep": b"[" * 100_000,
            "binary": b"\xff\x00",
        }[damage]
    )
    assert probed(CHATML, tmp_path) == glue
    assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """A file where the cache folder should be costs the cache, nothing else."""
    (tmp_path / "templates").write_text("in the way")
    assert probed(CHATML, tmp_path).supports_system


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a folder that cannot be written")
def test_a_read_only_cache_is_no_error(tmp_path: Path) -> None:
    """A cache folder without write permission costs the cache, nothing else."""
    folder = tmp_path / "templates"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert probed(CHATML, tmp_path).supports_system
