from types import SimpleNamespace

import psutil
import pytest

from chatapp.power import is_on_battery


@pytest.mark.parametrize(
    ("battery", "expected"),
    [
        (None, False),
        (SimpleNamespace(power_plugged=True), False),
        (SimpleNamespace(power_plugged=None), False),
        (SimpleNamespace(power_plugged=False), True),
    ],
)
def test_only_a_battery_that_nothing_charges_counts(
    monkeypatch: pytest.MonkeyPatch, battery: object, expected: bool
) -> None:
    """No battery, one that is charged, and a system that does not tell are no reason to wait."""
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    assert is_on_battery() is expected


@pytest.mark.parametrize("failure", [FileNotFoundError("/sys/class/power_supply"), PermissionError(), ValueError()])
def test_a_system_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    """In some containers there is no such folder, or nobody may read it: that is no reason to wait, or to fail."""

    def read() -> None:
        raise failure

    monkeypatch.setattr(psutil, "sensors_battery", read, raising=False)
    assert not is_on_battery()


def test_a_system_without_batteries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where psutil knows of none, there is none."""
    monkeypatch.delattr(psutil, "sensors_battery", raising=False)
    assert not is_on_battery()
