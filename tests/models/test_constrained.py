"""Answers by a grammar, with the real library: tiny models with random weights say anything that is allowed."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.client import EngineProcess
from models.engine import GAVE_UP, Entry, Event, Failed, Finished, Prepared, Prompt, Sampling
from models.errors import GrammarError
from models.llama import Context, ContextSettings, Grammar, Model, Sampler
from models.schema import grammar_of
from tests.models.helpers import one, starter
from tests.models.random_schemas import conforms, random_schema
from tests.models.tiny_models import build

N_SCHEMAS = 50
DIGITS = 'root ::= [0-9]{3} ("." [0-9]+)? "!"'


class Speaker:
    """A model and a context that answers from the start each time."""

    def __init__(self, path: Path) -> None:
        self.model = Model(path, gpu_layers=0, progress=lambda _share: None)
        self.context = Context(self.model, ContextSettings(2048, False, 1))
        self.prompt = self.model.tokenize("<|im_start|>user\nWrite.<|im_end|>\n<|im_start|>assistant\n", True)

    def says(self, grammar: str, *, temperature: float = 1.0, seed: int = 1, limit: int = 1500) -> tuple[bytes, bool]:
        """The bytes of an answer, and whether it ended by itself."""
        self.context.clear()
        self.context.prefill(self.prompt, lambda _done: None)
        sampler = Sampler(self.model, Sampling(temperature=temperature, grammar=grammar), seed, self.context.tokens)
        said = b""
        try:
            for _ in range(limit):
                token = self.context.sample(sampler)
                if self.model.ends_generation(token):
                    return said, True
                said += self.model.piece(token)
                self.context.decode(token)
            return said, False
        finally:
            sampler.close()

    def close(self) -> None:
        """Free all."""
        self.context.close()
        self.model.close()


@pytest.fixture(scope="module", params=["dense", "recurrent"])
def tiny(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, native_log: list[str]
) -> Iterator[Speaker]:
    """A tiny model of two kinds of memory."""
    assert native_log is not None
    speaker = Speaker(build(request.param, tmp_path_factory.mktemp("tiny")))
    yield speaker
    speaker.close()


@pytest.fixture(scope="module")
def real(native_log: list[str]) -> Iterator[Speaker]:
    """The starter model."""
    assert native_log is not None
    speaker = Speaker(starter())
    yield speaker
    speaker.close()


def assert_conforming(speaker: Speaker, seed: int, temperature: float) -> None:
    """An answer by a random schema parses and conforms, and ends by itself."""
    schema = random_schema(random.Random(seed))
    said, is_over = speaker.says(grammar_of(schema), temperature=temperature, seed=seed)
    assert is_over, (schema, said)
    assert conforms(json.loads(said.decode()), schema, schema), (schema, said)


def test_random_answers_conform_to_random_schemas(tiny: Speaker) -> None:
    """Whatever is drawn, it is JSON that conforms to its schema."""
    for seed in range(N_SCHEMAS):
        assert_conforming(tiny, seed, temperature=1.5)


def test_the_likeliest_answers_conform_too(real: Speaker) -> None:
    """Greedy and sampled, from a model that would rather say something else."""
    for seed in range(100, 106):
        assert_conforming(real, seed, temperature=0 if seed % 2 else 0.8)


def test_a_schema_may_refer_to_itself(tiny: Speaker) -> None:
    """Trees as deep as the model likes: those that come to an end conform."""
    schema = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "additionalProperties": False}
    answers = [tiny.says(grammar_of(schema), temperature=1.5, seed=seed, limit=300) for seed in range(8)]
    ended = [json.loads(said.decode()) for said, is_over in answers if is_over]
    assert ended
    assert all(conforms(tree, schema, schema) for tree in ended)


def test_an_answer_follows_a_grammar_to_its_end_and_no_further(tiny: Speaker) -> None:
    """It ends where the grammar is complete, at any temperature, and not before."""
    for seed, temperature in enumerate((0, 0.5, 2)):
        said, is_over = tiny.says(DIGITS, temperature=temperature, seed=seed)
        assert is_over or b"." in said[:4]
        assert said[:3].isdigit()
        assert not is_over or said.endswith(b"!")


def test_the_same_seed_gives_the_same_answer(tiny: Speaker) -> None:
    """A token tried in vain does not make the next ones chance."""
    grammar = grammar_of(random_schema(random.Random(7)))
    assert tiny.says(grammar, seed=3) == tiny.says(grammar, seed=3)
    assert len({tiny.says(grammar, seed=seed) for seed in range(4)}) > 1


def test_control_tokens_never_spell_text(tiny: Speaker) -> None:
    """What looks like a control token is written letter by letter."""
    assert tiny.says('root ::= "<|im_start|>"', temperature=0) == (b"<|im_start|>", True)


@pytest.mark.parametrize("grammar", ['root ::= "a" [^\\x00-\\U0010FFFF]', 'root ::= "a" "\\x00"'])
def test_a_grammar_that_allows_nothing_is_one_sentence(tiny: Speaker, grammar: str) -> None:
    """The library would end the process for the token it takes then."""
    with pytest.raises(GrammarError, match="allows nothing here"):
        tiny.says(grammar)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("root ::= x", "'x'"),
        ('root ::= "a', "unexpected end of input"),
        ("root ::= [a", "unexpected end of input"),
        ('root ::= "\\d"', "unknown escape"),
        ('root ::= root "a" | "b"', "left recursion"),
        ('root ::= a\na ::= b "x"\nb ::= a | "y"', "left recursion"),
        ('root ::= x*\nx ::= ""', "left recursion"),
        ('root ::= "a"{2001}', "number of repetitions"),
        ('root ::= "a"{99999999999999999999}', "cannot be used"),
        ('root ::= "a"{1000}{1000}{1000}', "repet"),
        ("root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000, "deep"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_one_sentence(tiny: Speaker, grammar: str, reason: str) -> None:
    """It names what is wrong as far as the library tells."""
    with pytest.raises(GrammarError, match=reason) as caught:
        Grammar(tiny.model, grammar)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + "(" * 100 + '"a"' + ")" * 100,
        'root ::= ((("a"{1000}){1000}){1000})',
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(1900)) + '\nr1900 ::= "x"',
        "root ::= (" + "|".join(f'"{i}"' for i in range(200)) + ")+",
        'root ::= ("a"*)*',
        'root ::= "(" root ")" | ""',
    ],
)
def test_large_grammars_are_followed(tiny: Speaker, grammar: str) -> None:
    """Deep, long, repeated, recursive on the right: all this is within the limits."""
    assert tiny.says(grammar, limit=20)[0] is not None


ENDLESS_GRAMMAR = 'root ::= ("a"?){1000} "b"'
ENDLESS = """
import sys
from pathlib import Path
from models.engine import Entry, Failed, Prompt, Sampling
from models.llama import quiet_logs
from models.loading import LocalSettings
from models.local import LocalEngine
kept = quiet_logs(lambda text: None)
root = Path(sys.argv[2])
settings = LocalSettings(Path(sys.argv[1]), root, root, 512, threads=1, flash_attention="off")
engine = LocalEngine(settings, lambda event: None, grammar_limit_s=0.3)
say = lambda event: print(event, flush=True) if isinstance(event, Failed) else None
engine.generate(Prompt((Entry("user", "x"),), store_kv=False), Sampling(grammar='root ::= ("a"?){1000} "b"'), say)
"""


def test_a_grammar_that_takes_forever_ends_the_process_with_a_word(tmp_path: Path) -> None:
    """Native code cannot be interrupted: who waits is told why, and the engine starts anew with the next request."""
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS, str(build("dense", tmp_path)), str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert "takes too long" in done.stdout, done.stderr
    assert done.returncode == 3


async def test_the_engine_starts_anew_behind_an_endless_grammar(tmp_path: Path) -> None:
    """Who stops such an answer does not wait long, and the next question is answered."""
    engine = EngineProcess(
        build("dense", tmp_path), cache_dir=tmp_path, data_dir=tmp_path, n_ctx=512, threads=1, flash_attention="off"
    )
    prompt = Prompt((Entry("user", "x"),), store_kv=False)
    events: list[Event] = []
    async for event in engine.generate(prompt, Sampling(grammar=ENDLESS_GRAMMAR)):
        events.append(event)
        if isinstance(event, Prepared):
            await engine.cancel()
    assert one(Failed, events).kind == GAVE_UP
    finished = one(Finished, [event async for event in engine.generate(prompt, Sampling(grammar='root ::= "yes"'))])
    await engine.close()
    assert (finished.text, finished.reason) == ("yes", "end")
