import pytest

from chatapp.plain.verbs import VERBS as PLAIN_VERBS
from chatapp.tui.commands import VERBS as WINDOW_VERBS
from chatapp.verbs import IN_PLAIN, VERBS, Choice, Verb, named, typed


def test_every_row_is_bound_by_a_front_end() -> None:
    """The window does all that it has words for; so does plain mode what only it has, or says in its own words."""
    assert {verb.name for verb in WINDOW_VERBS} == set(VERBS)
    own = {name for name, verb in IN_PLAIN.items() if VERBS.get(name) != verb}
    assert own <= {verb.name for verb in PLAIN_VERBS}


def test_names_stand_for_one_verb() -> None:
    """Names, other names and titles are unique, and each sentence is one."""
    for verbs in (WINDOW_VERBS, PLAIN_VERBS):
        names = [name for verb in verbs for name in (verb.name, verb.alias) if name]
        assert len(names) == len(set(names))
        assert [verb.name for verb in verbs if not verb.sentence.endswith(".")] == []
    assert len({verb.title for verb in WINDOW_VERBS}) == len(WINDOW_VERBS)


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [("/new", "new", ""), ("/Task  two words ", "task", "two words"), ("/", "", ""), ("/ new", "", "")],
)
def test_a_name_stands_right_behind_the_slash(text: str, name: str, argument: str) -> None:
    """In capitals, too; the argument has no white space around it."""
    assert typed(text) == (name, argument)


def test_a_verb_is_found_by_its_other_name() -> None:
    """No name finds none, not even a verb that has no other name."""
    assert named(PLAIN_VERBS, "exit") == named(PLAIN_VERBS, "quit") == IN_PLAIN["quit"]
    assert named(PLAIN_VERBS, "") is None


@pytest.mark.parametrize(
    ("verb", "argument", "said"),
    [
        (Verb("a", "A", "Do."), "x", "/a takes nothing behind it."),
        (Verb("a", "A", "Do.", argument="[X]"), "", None),
        (Verb("a", "A", "Do.", argument="X"), "", "/a X: Do."),
        (Verb("a", "A", "Do.", argument="X"), "x", None),
        (Verb("a", "A", "Do.", argument="X", choices=(Choice("x", "", ""),)), "y", "/a takes one of x."),
        (Verb("a", "A", "Do.", argument="X", choices=(Choice("x", "", ""),)), "x", None),
    ],
)
def test_an_argument_that_cannot_be_is_refused(verb: Verb, argument: str, said: str | None) -> None:
    """One sentence, with what would be right."""
    assert verb.refusal(argument) == said
