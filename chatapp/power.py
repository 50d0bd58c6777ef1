"""Whether this machine runs on its battery."""

from __future__ import annotations


def is_on_battery() -> bool:
    """True if there is a battery and nothing charges it; False also where the system does not tell."""
    import psutil  # its native part is loaded when a draft is looked at, not when the window starts

    read = getattr(psutil, "sensors_battery", None)  # not every system has batteries
    try:
        battery = read() if read else None
    except (OSError, ValueError):  # no folder of them, or one that may not be read: it goes on as anywhere else
        return False
    return battery is not None and battery.power_plugged is False
