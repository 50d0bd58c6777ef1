import threading

from models.watch import Watch

LONG_S = 10.0


def test_a_call_that_takes_too_long_is_given_up() -> None:
    """From another thread, while the call still runs."""
    given_up = threading.Event()
    watch = Watch(0.0, is_cancelled=lambda: False, give_up=given_up.set)
    with watch.over_call():
        assert given_up.wait(LONG_S)


def test_a_cancelled_request_has_less_patience() -> None:
    """Who stops an answer does not wait as long as who waits for it."""
    given_up = threading.Event()
    watch = Watch(1e9, is_cancelled=lambda: True, give_up=given_up.set)
    with watch.over_call():
        assert given_up.wait(LONG_S)


def test_time_between_calls_does_not_count() -> None:
    """Nothing runs then that could not be interrupted."""
    given_up, looked = threading.Event(), threading.Semaphore(0)

    def is_cancelled() -> bool:
        looked.release()
        return False

    watch = Watch(0.0, is_cancelled=is_cancelled, give_up=given_up.set)
    for _ in range(3):
        assert looked.acquire(timeout=LONG_S)
    watch.close()
    assert not given_up.is_set()
