from collections.abc import Callable

from models.pace import Pace

Machine = Callable[[int], tuple[float, float]]
"""Threads -> seconds and processor seconds of a step."""


def quiet(threads: int) -> tuple[float, float]:
    """Twice the threads take half the time, and all the processor time they ask for."""
    return 0.016 / threads, 0.016


def beside_a_busy_program(threads: int) -> tuple[float, float]:
    """One busy neighbour on two processors: two threads wait for each other, one has a processor of its own."""
    return (0.016, 0.016) if threads == 1 else (0.032, 0.046)


def run(pace: Pace, machine: Machine, n_steps: int) -> tuple[float, list[int]]:
    """Let an answer of so many tokens be decoded; returns its seconds and the threads of each step."""
    seconds, used = 0.0, []
    for _ in range(n_steps):
        used.append(pace.threads)
        took_s, cpu_s = machine(pace.threads)
        seconds += took_s
        pace.took(took_s, cpu_s)
    return seconds, used


def test_a_quiet_machine_keeps_all_threads() -> None:
    """Nothing is ever tried there."""
    _, used = run(Pace(2), quiet, 2_000)
    assert set(used) == {2}


def test_a_window_that_paints_is_no_busy_neighbour() -> None:
    """Ten frames a second take a little of a core in bursts; nothing is tried because of them."""
    pace, used = Pace(2), set()
    for step in range(2_000):
        used.add(pace.threads)
        is_painting = step % 12 == 0
        pace.took(0.016 if is_painting else 0.008, 0.018 if is_painting else 0.016)
    assert used == {2}


def test_a_busy_neighbour_costs_little() -> None:
    """Half the threads take over after a few steps, and the tries of the full number become rare."""
    alone_s = 1_000 * beside_a_busy_program(1)[0]
    seconds, used = run(Pace(2), beside_a_busy_program, 1_000)
    assert used[0] == 2
    assert used.count(2) < 20
    assert seconds < 1.05 * alone_s


def test_all_threads_come_back_when_the_neighbour_is_gone() -> None:
    """The next try finds them faster, and then they stay."""
    pace = Pace(2)
    run(pace, beside_a_busy_program, 200)
    _, used = run(pace, quiet, 1_000)
    assert set(used[600:]) == {2}


def test_fewer_threads_that_are_slower_are_given_up() -> None:
    """Where others take processor time but all threads are faster all the same, they stay."""

    def half_busy(threads: int) -> tuple[float, float]:
        return 0.018 / threads, 0.8 * 0.018

    seconds, used = run(Pace(4), half_busy, 400)
    assert used.count(4) > 0.9 * len(used)
    assert seconds < 1.05 * 400 * half_busy(4)[0]


def test_one_thread_stays_one() -> None:
    """There is nothing to choose."""
    _, used = run(Pace(1), beside_a_busy_program, 100)
    assert set(used) == {1}


def test_a_clock_that_stands_still_does_no_harm() -> None:
    """Steps of no time say nothing."""
    assert run(Pace(2), lambda _threads: (0.0, 0.0), 50)[1] == [2] * 50
