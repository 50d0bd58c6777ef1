from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from models.cost import Rates
from models.kvformat import SegmentId
from models.kvstore import KvStore
from models.price import Ask, Price, asks, prices
from tests.models.helpers import FINGERPRINT
from tests.models.kvstock import open_store, path_of, put

RATES = Rates(prefill_s_per_token=1.0, restore_s_per_byte=1e-4, restore_s_per_file=0.5)
GENERATION = FINGERPRINT.digest().hex()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The KV folder, not made yet."""
    return tmp_path / "kv"


@pytest.fixture
def store(root: Path) -> Iterator[KvStore]:
    """A stock whose rates were measured."""
    with closing(open_store(root)) as opened:
        opened.remember("rates", RATES.to_json())
        yield opened


def price(root: Path, n_tokens: int, *tips: SegmentId) -> Price:
    """The price of one conversation, in whole microseconds."""
    ends = [(GENERATION, tip.key.hex()) for tip in tips]
    found = prices(root, {"s": Ask(n_tokens, ends)}, fingerprint=GENERATION)["s"]
    return Price(found.is_warm, None if found.seconds is None else round(found.seconds, 6))


def test_what_is_on_disk_is_warm(root: Path, store: KvStore) -> None:
    """Restoring takes the time of its files and bytes, what is not there that of its prefill."""
    chain = put(store, range(50), range(50, 100), kinds=("rows", "state"), n_bytes=1000)
    n_bytes = sum(path_of(root, one, "rows").stat().st_size for one in chain)
    n_bytes += path_of(root, chain[-1], "state").stat().st_size
    restore_s = 2 * 0.5 + n_bytes * 1e-4
    assert price(root, 100, chain[-1]) == Price(True, round(restore_s, 6))
    assert price(root, 105, chain[-1]) == Price(True, round(restore_s + 5, 6))
    assert price(root, 200, chain[-1]) == Price(False, round(restore_s + 100, 6))


def test_what_is_not_on_disk_is_cold(root: Path, store: KvStore) -> None:
    """Without a tip, with an unknown one, and behind a lost segment, all is prefilled."""
    first, second = put(store, range(50), range(50, 100))
    assert price(root, 80) == Price(False, 80.0)
    assert price(root, 80, SegmentId(FINGERPRINT.digest(), first.key, 50, (7,))) == Price(False, 80.0)
    store.reject(first)
    assert price(root, 100, second) == Price(False, 100.0)


def test_a_slow_disk_is_not_waited_for(root: Path, store: KvStore) -> None:
    """Where prefilling is expected to be faster, that is the price, and it is not warm."""
    store.remember("rates", Rates(prefill_s_per_token=0.001, restore_s_per_byte=1.0, restore_s_per_file=1.0).to_json())
    (tip,) = put(store, range(50))
    assert price(root, 50, tip) == Price(False, round(0.05, 6))


def test_without_measurements_there_are_no_seconds(root: Path) -> None:
    """What is there is known, not how long it takes; without a folder nothing is there, and none is made."""
    assert prices(root, {"s": Ask(10, [])}) == {"s": Price(False, None)}
    assert not root.exists()
    with closing(open_store(root)) as store:
        (tip,) = put(store, range(10))
    assert price(root, 10, tip) == Price(True, None)


def test_conversations_are_asked_for_together() -> None:
    """One without tokens has no price; one without tips is asked for all the same."""
    asked = asks({"a": [("f", "t")]}, [("a", 5), ("b", 0)])
    assert asked == {"a": Ask(5, [("f", "t")]), "b": Ask(0, ())}
