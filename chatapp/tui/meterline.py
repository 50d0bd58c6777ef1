"""The meters folded to one line, for narrow windows."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content

from chatapp.texts import tr, tr_later
from chatapp.tui import words
from chatapp.tui.live import Activity, ModelState, Readings
from chatapp.tui.readouts import ALARMS, ONCE, ahead_text, context_share, is_busy

_SHORT_PHASES: dict[Activity, str] = {
    "idle": tr_later("ready"),
    "waiting": tr_later("starting"),
    "queued": tr_later("queued"),
    "failed": tr_later("failed"),
    "load": tr_later("loading"),
    "wait": tr_later("waiting"),
    "tune": tr_later("measuring"),
    "check": tr_later("checking"),
    "restore": tr_later("restore"),
    "prefill": tr_later("prefill"),
    "decode": tr_later("decode"),
}


def one_line(readings: Readings, model: ModelState, now: float, width: int) -> Content:
    """The meters folded to one line: the parts that fit, the most telling first."""
    if model.failure and not is_busy(readings):
        return Content.assemble((tr("no model"), "bold $error"))
    loading = model.info is None and not is_busy(readings)
    shown = model.progress if loading else readings
    activity = "load" if loading and shown.activity not in ONCE else shown.activity
    phase = tr(_SHORT_PHASES[activity])
    if shown.total and activity not in ("idle", "failed"):
        phase += f" {shown.done / shown.total:.0%}"
        if (eta := shown.eta(now)) is not None:
            phase += " " + tr("{time} left").format(time=words.seconds(eta))
    speeds: list[str] = []
    if tpot := readings.tpot():
        speeds.append(tr("{n} tokens/s").format(n=f"{1 / tpot:,.0f}"))
    if ttft := readings.ttft(now):
        speeds.append(f"TTFT {words.seconds(ttft[0])}")
    origins: list[str] = []
    if reuse := readings.reuse:
        counts = (
            (tr("restored"), reuse.restored),
            (tr("prefilled"), reuse.prefilled),
            (tr("resident"), reuse.resident),
        )
        origins = [f"{name} {words.count(n)}" for name, n in counts]
    parts = [(phase, "bold $accent")]
    share = context_share(readings.context_tokens, model.info)
    level = words.fullness(share)
    style, alarm = ALARMS[level]
    context = (tr("context") + f" {share:.0%}{alarm and ' ' + alarm}", f"bold {style}" if level else "")
    if level:  # before all that can be left out
        parts.append(context)
    if ahead := ahead_text(readings):
        parts.append((ahead, ""))
    rest = [*speeds, *origins] if activity == "decode" else [*origins, *speeds]
    parts += [(text, "") for text in rest]
    if not level and share:
        parts.append(context)
    line = [parts[0]]
    n_cells = cell_len(phase)
    for text, text_style in parts[1:]:
        n_cells += 3 + cell_len(text)
        if n_cells > width:
            break
        line += [(" · ", ""), (text, text_style)]
    return Content.assemble(*line)
