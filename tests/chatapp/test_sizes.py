import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.sizes import MAX_BYTES, parse_size

UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    f"{prefix}{suffix}": 1024**power for power, prefix in enumerate("KMGT", 1) for suffix in ("", "iB")
}


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("0", 0),
        (1_048_576, 1 << 20),
        ("20GiB", 20 << 30),
        ("500 MB", 500_000_000),
        ("1.5 GiB", 3 << 29),
        ("0.1 kB", 100),
        ("0.0001 kB", 0),
        (" 7 b ", 7),
        ("2g", 2 << 30),
        (MAX_BYTES, MAX_BYTES),
    ],
)
def test_a_size_is_whole_bytes(text: str | int, n_bytes: int) -> None:
    """Decimal and binary units, in any case, with or without a blank; parts of a byte are dropped."""
    assert parse_size(text) == n_bytes


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]), st.booleans())
def test_number_and_unit_are_multiplied(number: int, unit: str, blank: str, is_upper: bool) -> None:
    """Exactly, whatever the unit and its case."""
    text = f"{number}{blank}{unit}"
    assert parse_size(text.upper() if is_upper else text.lower()) == number * UNITS[unit]


@given(st.integers(0, 999), st.integers(0, 999), st.sampled_from(["MB", "MiB", "TiB"]))
def test_fractions_are_exact(whole: int, thousandths: int, unit: str) -> None:
    """No rounding but that to whole bytes."""
    assert parse_size(f"{whole}.{thousandths:03} {unit}") == (whole * 1000 + thousandths) * UNITS[unit] // 1000


@pytest.mark.parametrize(
    "value",
    [
        *("", "lots", "nan", "inf", "1e9", "1_000", "٣", "9" * 5000),
        *("-1", -1, "-5 GiB", "8388608 TiB", MAX_BYTES + 1),
        *("1,5 GB", ".5 GB", "1. GB", "1.5", "1.5 B"),
        *("GB", "iB", "5 iB", "5 PB", "5 GiBs", "5  GB", "5 G B"),
    ],
)
def test_nonsense_is_one_sentence(value: str | int) -> None:
    """It says what a size looks like."""
    with pytest.raises(ValueError, match=r'such as "20GiB" or "500 MB", not .*\.$'):
        parse_size(value)


@given(st.text())
def test_any_text_is_a_size_or_refused(text: str) -> None:
    """Nothing else comes out than a size the system can have, or `ValueError`."""
    try:
        n_bytes = parse_size(text)
    except ValueError:
        return
    assert 0 <= n_bytes <= MAX_BYTES
