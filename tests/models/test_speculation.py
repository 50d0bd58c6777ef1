from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from models.speculation import BATCH_SIZES, Costs, Guesser, Lookup, Speculation

TOKENS = st.lists(st.integers(0, 5), max_size=60)
STEP_S = 0.01
POEM = list(range(100, 180))


def taught(**ratios: float) -> Speculation:
    """One that has measured what batches cost, in steps: `of_4=1.5` for a batch of four."""
    speculation = Speculation()
    speculation.costs.took(1, STEP_S)
    for name, ratio in ratios.items():
        speculation.costs.took(int(name.removeprefix("of_")), ratio * STEP_S)
    return speculation


def copied(speculation: Speculation, text: Sequence[int], n: int) -> Guesser:
    """A guesser for an answer that has repeated the first `n` tokens of its prompt."""
    guesser = speculation.begin([*text, 1, 2, 3])
    for token in text[:n]:
        guesser.add(token)
    return guesser


# --- where the text has been before ---


def test_what_followed_the_same_tokens_is_guessed() -> None:
    """Three tokens that stood before are followed by the same as there."""
    lookup = Lookup([1, 2, 3, 4, 5, 6, 9, 1, 2, 3])
    assert (lookup.guess, lookup.guesses(3), lookup.n_matched) == (4, [4, 5, 6], 3)


def test_two_tokens_are_enough_where_three_are_not_found() -> None:
    """The shorter match is the weaker one, and says so."""
    lookup = Lookup([1, 2, 3, 9, 7, 2, 3])
    assert (lookup.guess, lookup.n_matched) == (9, 2)
    assert Lookup([1, 2, 3]).guess is None


def test_the_newest_place_counts() -> None:
    """Of two places the later one is more likely what is being copied."""
    assert Lookup([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]).guess == 5


def test_a_copy_is_followed() -> None:
    """While the text repeats a place, the match grows; where it parts, another one is looked for."""
    lookup = Lookup([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3])
    lookup.add(4)
    lookup.add(5)
    assert (lookup.guess, lookup.n_matched) == (6, 5)
    lookup.add(8)
    assert lookup.n_matched == 0
    lookup.add(9)
    assert (lookup.guess, lookup.n_matched) == (1, 2)


def test_all_that_agrees_before_is_counted() -> None:
    """A match found late is as good as one that was followed from its beginning."""
    assert Lookup([0, 1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5]).n_matched == 5


def test_a_loop_goes_round() -> None:
    """An answer that repeats itself is guessed for as long as one likes."""
    assert Lookup([1, 2, 1, 2, 1, 2]).guesses(5) == [1, 2, 1, 2, 1]


def test_bytes_that_are_no_whole_tokens_are_no_match() -> None:
    """Searching bytes must not find a token between two others."""
    assert Lookup([0x01000000, 0x02000000, 0x03000000, 7, 0x00010000, 0x00020000, 0x00030000]).guess is None


@given(TOKENS, TOKENS)
def test_a_guess_has_stood_behind_the_same_tokens(before: list[int], added: list[int]) -> None:
    """Whatever grows: there is a guess exactly if the last two tokens stood before, and it stands behind them."""
    lookup = Lookup(before)
    for token in added:
        lookup.add(token)
    text = [*before, *added]
    followers = {text[i + 2] for i in range(len(text) - 2) if text[i : i + 2] == text[-2:]} if len(text) > 2 else set()
    assert (lookup.guess in followers) if followers else lookup.guess is None
    assert lookup.n_matched == 0 or text[-lookup.n_matched :] in [
        text[i : i + lookup.n_matched] for i in range(len(text) - lookup.n_matched)
    ]


# --- what batches cost ---


def test_costs_are_counted_in_steps() -> None:
    """A batch that takes three times as long as a step is worth three of them."""
    costs = Costs()
    costs.took(1, 0.01)
    costs.took(8, 0.03)
    assert (costs.ratio(1), round(costs.ratio(8), 6)) == (1.0, 3.0)
    assert costs.is_known(8)
    assert not costs.is_known(4)


def test_sizes_between_lie_on_the_line() -> None:
    """What was not run is expected to cost as its neighbours say."""
    costs = Costs()
    costs.took(1, 0.01)
    costs.took(2, 0.012)
    costs.took(8, 0.03)
    assert round(costs.ratio(5), 6) == round((1.2 + 3.0) / 2, 6)


def test_dear_small_batches_do_not_speak_against_large_ones() -> None:
    """A machine whose batch of four costs four steps may still do thirty-two for much less than that."""
    costs = Costs()
    costs.took(1, 0.01)
    costs.took(4, 0.04)
    assert costs.ratio(32) < 32 / 2


def test_a_stall_is_no_measure_of_a_step() -> None:
    """One step of a second among many of ten milliseconds changes little."""
    costs = Costs()
    for seconds in (0.01, 0.01, 1.0):
        costs.took(1, seconds)
    assert costs.step_s is not None
    assert costs.step_s < 0.012


def test_a_first_step_that_stalls_does_not_make_batches_cheap() -> None:
    """The first step may read weights from disk: the next one says what a step takes, and a batch that it is less."""
    costs = Costs()
    costs.took(1, 5.0)
    costs.took(8, 0.04)
    assert (costs.step_s, costs.ratio(8)) == (0.04, 1.0)
    costs.took(1, 0.01)
    costs.took(8, 0.04)
    assert costs.step_s == 0.01
    assert costs.ratio(8) > 1.2


def test_a_clock_that_stands_still_teaches_nothing_for_ever() -> None:
    """A coarse clock says of single steps and batches that they take no time: what it says later counts."""
    costs = Costs()
    for seconds in (0.0, 0.0, 0.01):
        costs.took(1, seconds)
    costs.took(4, 0.0)
    costs.took(4, 0.02)
    assert (costs.step_s, costs.ratio(4)) == (0.01, 2.0)


def test_a_busy_moment_is_forgotten() -> None:
    """A batch that was slow once is tried again after some answers; a fast one stays as fast as it was."""
    costs = Costs()
    costs.took(1, 0.01)
    costs.took(4, 1.0)
    costs.took(8, 0.02)
    for _ in range(20):
        costs.forget_a_little()
    assert costs.ratio(4) < 4
    assert costs.ratio(32) < 32 / 2
    assert round(costs.ratio(8), 6) == 2.0


# --- whether it pays ---


def test_nothing_is_guessed_where_a_batch_costs_as_much_as_its_steps() -> None:
    """However sure the guesses are: on a machine that computes one token after the other there is nothing to gain."""
    speculation = taught(**{f"of_{size}": float(size) for size in BATCH_SIZES})
    assert copied(speculation, POEM, 60).guesses(100) == []


def test_a_copy_is_guessed_where_batches_are_cheap() -> None:
    """On a machine that waits for its memory, a batch costs little more than a step: as many as there may be."""
    speculation = taught(of_2=1.0, of_4=1.1, of_8=1.2, of_16=1.4, of_32=1.8)
    guesser = copied(speculation, POEM, 40)
    assert guesser.guesses(100) == POEM[40:71]
    assert guesser.guesses(10) == POEM[40:47]
    assert guesser.guesses(0) == []


def test_where_only_large_batches_pay_only_they_are_run() -> None:
    """A batch too small to pay is not run because there is no room for a larger one."""
    speculation = taught(of_2=2.4, of_4=4.0, of_8=6.6, of_16=7.0, of_32=12.0)
    guesser = copied(speculation, POEM, 60)
    assert len(guesser.guesses(100)) >= 15
    assert guesser.guesses(6) == []


def test_ordinary_text_is_not_guessed() -> None:
    """Where guesses turn out to be wrong, none are evaluated, and that is found out without evaluating any."""
    speculation = taught(of_2=1.5, of_4=2.0, of_8=3.0, of_16=5.0, of_32=9.0)
    text = [token for n in range(40) for token in (1, 2, 3, 100 + n)]
    guesser = speculation.begin(text[:8])
    for token in text[8:]:
        guesser.add(token)
    assert speculation.share_right(3) < 0.3
    for token in (1, 2, 3):
        guesser.add(token)
    assert guesser.guesses(100) == []
    assert guesser.n_guessed == 0


def test_a_batch_that_was_never_run_needs_surer_guesses() -> None:
    """What is only believed of its cost is tried for a larger gain than what was measured."""
    known, unknown = taught(of_4=2.2), taught()
    ratio_4 = unknown.costs.ratio(4)
    assert abs(ratio_4 - 2.2) < 1e-9
    lengths = range(2, 60)
    tried = [n for n in lengths if unknown.n_guesses(n, 3)]
    assert tried
    assert set(tried) < {n for n in lengths if known.n_guesses(n, 3)}


def test_measured_losses_end_it() -> None:
    """A batch that was believed to pay is not run again once it was found not to."""
    speculation = taught()
    guesser = copied(speculation, POEM, 40)
    for _ in range(2 * len(BATCH_SIZES)):
        if not (guesses := guesser.guesses(31)):
            break
        speculation.costs.took(1 + len(guesses), 2 * (1 + len(guesses)) * STEP_S)
    assert guesser.guesses(31) == []


def test_what_was_evaluated_and_right_is_counted() -> None:
    """Guesses count as right up to the first wrong one; what nobody evaluated does not count."""
    speculation = taught(of_2=1.0, of_4=1.1, of_8=1.2)
    guesser = copied(speculation, POEM, 40)
    assert guesser.n_guessed == 0
    assert guesser.guesses(3) == POEM[40:43]
    guesser.add(POEM[40])
    guesser.add(POEM[41])
    guesser.add(5)
    assert (guesser.n_guessed, guesser.n_right) == (3, 2)


def test_later_answers_begin_with_what_was_learned() -> None:
    """A second copy is guessed earlier than the first, because guesses were right so far."""

    def first_guess(speculation: Speculation) -> int:
        guesser = speculation.begin([*POEM, 1, 2, 3])
        for n, token in enumerate(POEM):
            guesser.add(token)
            if guesser.guesses(31):
                return n
        return len(POEM)

    ratios = {"of_2": 2.4, "of_4": 4.0, "of_8": 6.4, "of_16": 9.0, "of_32": 16.0}
    speculation = taught(**ratios)
    first = first_guess(speculation)
    copied(speculation, POEM, len(POEM))
    assert first_guess(speculation) < first
