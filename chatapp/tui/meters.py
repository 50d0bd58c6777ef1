"""The meters: what the engine is doing, how fast, and where the tokens of the prompt came from."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Sparkline, Static

from chatapp.safe import clean_line
from chatapp.tui import words
from chatapp.tui.live import ModelState, Readings, Reuse
from models.engine import ModelInfo, TurnStats

WIDTH = 31
"""Cells of a line in the panel."""

MUTED = "$foreground 60%"
NOTE_ROWS = 6
"""Lines that notes on the template may take in the panel."""

_PHASES = {
    "idle": "ready",
    "waiting": "starting",
    "queued": "queued: another answer is running",
    "failed": "failed",
    "load": "loading the model",
    "tune": "measuring this machine",
    "check": "checking that saved KV comes back",
    "restore": "restore: reading KV from disk",
    "prefill": "prefill: reading the prompt",
    "decode": "decode: writing",
}
_SHORT_PHASES = {"idle": "ready", "waiting": "starting", "load": "loading", "tune": "measuring", "check": "checking"}
_ONCE = ("tune", "check")
"""Parts of a load that happen once for a model and a machine, and that have a name of their own."""
_MARKS = (("█", "$primary"), ("▓", "$secondary"), ("░", "$accent"))
"""Resident, restored, prefilled: told apart by the glyph too, for screens without colour."""
_ALARMS: dict[words.Fullness, tuple[str, str]] = {
    "": ("$primary", ""),
    "warning": ("$warning", "!"),
    "error": ("$error", "!!"),
}
"""Style and glyph of the context, by how full it is."""


def phase_text(readings: Readings, model: ModelState, now: float) -> Content:
    """Two lines: what is going on; how far it is and how long it will take."""
    busy = _is_busy(readings)
    if model.failure and not busy:
        return Content.assemble(("no model", "bold $error"), "\n", ("see the message on the left", MUTED))
    shown = readings if model.info or busy else model.progress
    activity = shown.activity if model.info or busy or shown.activity in _ONCE else "load"
    style = "bold $error" if activity == "failed" else "bold $success" if activity == "idle" else "bold $accent"
    return Content.assemble((_PHASES[activity], style), "\n", _progress(shown, now))


def _is_busy(readings: Readings) -> bool:
    """True while the engine works for this conversation, be it to load another model."""
    return readings.activity not in ("idle", "failed", "queued", "waiting")


def _progress(shown: Readings, now: float) -> Content:
    if not shown.total or shown.activity in ("idle", "failed"):
        return Content("")
    share = shown.done / shown.total
    eta = shown.eta(now)
    left = f" {words.seconds(eta)} left" if eta is not None else ""
    text = f" {share:4.0%}{left}"
    return Content.assemble((words.bar(share, max(4, WIDTH - len(text))), "$accent"), text)


def speed_text(readings: Readings, now: float) -> Content:
    """Time to the first token, time per token and tokens a second."""
    ttft = readings.ttft(now)
    tpot = readings.tpot()
    first = "-" if ttft is None else words.seconds(ttft[0]) + ("" if ttft[1] else " …")
    each = "-" if tpot is None else words.seconds(tpot)
    rate = "" if not tpot else f"{1 / tpot:,.0f} tokens/s"
    return Content.assemble(_label("TTFT"), (first, "bold"), "\n", _label("TPOT"), (each, "bold"), "  ", (rate, "bold"))


def context_share(used: int, info: ModelInfo | None) -> float:
    """How much of the context is used, from 0 to 1; 0 while no model is loaded."""
    return used / info.n_ctx if info and info.n_ctx else 0.0


def context_text(readings: Readings, info: ModelInfo | None) -> Content:
    """How full the context is, and the memory the KV cache takes: by the formula, and measured."""
    used = readings.context_tokens
    if info is None:
        return Content.assemble(_label("context"), (f"{words.count(used)} tokens", "bold"))
    share = context_share(used, info)
    level = words.fullness(share)
    style, alarm = _ALARMS[level]
    is_whole = readings.stats.kv_bytes is not None or readings.activity != "decode"
    measured = readings.stats.kv_bytes or (readings.reuse.kv_bytes if readings.reuse else None)
    written = readings.stats.kv_bytes_written
    return Content.assemble(
        _label("context"),
        (f"{words.count(used)} / {words.count(info.n_ctx)}", "bold"),
        "\n",
        (words.bar(share, WIDTH - 8), style),
        (f" {share:4.0%}{alarm:>3}\n", f"bold {style}" if level else ""),
        _label("KV"),
        (words.size(used * info.kv_bytes_per_token) + " ", "bold"),
        ("predicted\n", MUTED),
        _label("" if is_whole else "prompt"),
        ("- " if not measured else words.size(measured) + " ", "bold"),
        ("measured\n", MUTED),
        _label("written"),
        ("- " if written is None else words.size(written) + " ", "bold"),
        ("last turn", MUTED),
    )


def reuse_text(readings: Readings) -> Content:
    """Where this turn's prompt came from, as numbers and as one bar."""
    reuse = readings.reuse
    counts = (reuse.resident, reuse.restored, reuse.prefilled) if reuse else (0, 0, 0)
    lines = [
        Content.assemble((f"{mark} ", style), f"{name} ", (words.count(n), "bold"), "\n")
        for (mark, style), name, n in zip(_MARKS, ("resident", "restored", "prefilled"), counts, strict=True)
    ]
    cells = words.shares(counts, WIDTH)
    strip = Content.assemble(
        *[(mark * n, style) for (mark, style), n in zip(_MARKS, cells, strict=True)],
    )
    return Content("").join([*lines, strip if reuse and reuse.total else Content("·" * WIDTH)])


def resume_text(readings: Readings) -> Content:
    """How the conversation came back, and in words why KV on disk was not used, if so."""
    parts: list[Content | tuple[str, str]] = []
    if readings.came_back:
        parts.append((came_back(readings.came_back), "$secondary"))
    reason = readings.reuse.miss_reason if readings.reuse else None
    if reason and not readings.is_first:
        parts.append(("\nnot from disk: " + clean_line(reason, 120), "$warning"))
    if readings.kv_note:
        parts.append(("\n" + clean_line(readings.kv_note, 120), "$warning"))
    return Content.assemble(*parts)


def reasoning_text(stats: TurnStats) -> Content:
    """What became of the last answer's reasoning; empty if it had none."""
    if not stats.reasoning_tokens:
        return Content("")
    fate = "stripped: the answer was read again" if stats.stripped_tokens else "kept in the prefix"
    return Content.assemble((f"reasoning {words.count(stats.reasoning_tokens)} tokens, {fate}", MUTED))


def came_back(reuse: Reuse) -> str:
    """One sentence on how a history became resident."""
    if reuse.restored:
        return f"restored {words.count(reuse.restored)} tokens in {words.seconds(reuse.restore_s)}"
    if reuse.prefilled:
        return f"prefilled {words.count(reuse.prefilled)} tokens in {words.seconds(reuse.prefill_s)}"
    return f"{words.count(reuse.resident)} tokens were still resident"


def model_text(model: ModelState, n_rows: int) -> Content:
    """The model and the settings it runs with, in `n_rows` lines; notes that have no place are named by number."""
    info = model.info
    if info is None:
        return Content.assemble(("-", "bold") if not model.failure else ("not loaded", "bold $error"))
    lines = [(line, "bold") for line in words.wrapped(clean_line(info.name, WIDTH * 2), WIDTH)]
    lines += [(line, MUTED) for fact in settings_of(info) for line in words.wrapped(fact, WIDTH)]
    if info.kv_note:
        lines += [(line, "$warning") for line in words.wrapped(clean_line(info.kv_note, 120), WIDTH)]
    notes = [line for note in info.notes for line in words.wrapped(clean_line(note, 400), WIDTH)]
    if len(notes) > min(NOTE_ROWS, n_rows - len(lines)):
        n = len(info.notes)
        notes = [f"{n} note{'s' if n != 1 else ''} on the template: F1"]
    lines += [(line, MUTED) for line in notes]
    return Content("\n").join(Content.assemble((line, style)) for line, style in lines)


def settings_of(info: ModelInfo) -> list[str]:
    """What a model runs with, a line for each."""
    layers = f" · {info.gpu_layers} GPU layers" if info.gpu_layers else ""
    kv_type = "" if info.kv_type == "f16" else f" · KV {info.kv_type}"
    lines = [
        f"flash attention {'on' if info.flash_attention else 'off'}",
        f"{info.threads} thread{'s' if info.threads != 1 else ''}{layers}{kv_type}",
    ]
    if info.memory_kind != "dense":
        state = f", {words.size(info.kv_state_bytes)} a state" if info.kv_state_bytes else ""
        lines.append(f"{info.memory_kind} memory{state}")
    return lines


def one_line(readings: Readings, model: ModelState, now: float, width: int) -> Content:
    """The meters folded to one line: the parts that fit, the most telling first."""
    if model.failure and not _is_busy(readings):
        return Content.assemble(("no model", "bold $error"))
    loading = model.info is None and not _is_busy(readings)
    shown = model.progress if loading else readings
    activity = "load" if loading and shown.activity not in _ONCE else shown.activity
    phase = _SHORT_PHASES.get(activity, activity)
    if shown.total and activity not in ("idle", "failed"):
        phase += f" {shown.done / shown.total:.0%}"
        if (eta := shown.eta(now)) is not None:
            phase += f" {words.seconds(eta)} left"
    speeds: list[str] = []
    if tpot := readings.tpot():
        speeds.append(f"{1 / tpot:,.0f} tokens/s")
    if ttft := readings.ttft(now):
        speeds.append(f"TTFT {words.seconds(ttft[0])}")
    origins: list[str] = []
    if reuse := readings.reuse:
        counts = (("restored", reuse.restored), ("prefilled", reuse.prefilled), ("resident", reuse.resident))
        origins = [f"{name} {words.count(n)}" for name, n in counts]
    parts = [(phase, "bold $accent")]
    share = context_share(readings.context_tokens, model.info)
    level = words.fullness(share)
    style, alarm = _ALARMS[level]
    context = (f"context {share:.0%}{alarm and ' ' + alarm}", f"bold {style}" if level else "")
    if level:  # before all that can be left out
        parts.append(context)
    rest = [*speeds, *origins] if activity == "decode" else [*origins, *speeds]
    parts += [(text, "") for text in rest]
    if not level and share:
        parts.append(context)
    line = [parts[0]]
    n_cells = len(phase)
    for text, text_style in parts[1:]:
        n_cells += 3 + len(text)
        if n_cells > width:
            break
        line += [(" · ", ""), (text, text_style)]
    return Content.assemble(*line)


def _label(text: str) -> tuple[str, str]:
    return (f"{text:<8}", MUTED)


class Meters(VerticalScroll, can_focus=False):
    """The panel on the right. `show` paints it without a new layout of the window."""

    def __init__(self) -> None:
        super().__init__(id="meters")
        self._blocks = {
            name: Static("", id=f"meter-{name}", markup=False)
            for name in ("phase", "speed", "context", "reuse", "resume", "reasoning", "model")
        }
        self._spark = Sparkline([0.0, 0.0], summary_function=max, id="meter-spark")

    def compose(self) -> ComposeResult:
        """One fixed-height block for each question."""
        yield self._blocks["phase"]
        yield self._blocks["speed"]
        yield self._spark
        yield Static("memory", classes="meter-title", markup=False)
        yield self._blocks["context"]
        yield Static("this turn's prompt", classes="meter-title", markup=False)
        yield self._blocks["reuse"]
        yield self._blocks["resume"]
        yield self._blocks["reasoning"]
        yield Static("model", classes="meter-title", markup=False)
        yield self._blocks["model"]

    def show(self, readings: Readings, model: ModelState, now: float) -> None:
        """Paint the numbers as they are at `now`."""
        contents = {
            "phase": phase_text(readings, model, now),
            "speed": speed_text(readings, now),
            "context": context_text(readings, model.info),
            "reuse": reuse_text(readings),
            "resume": resume_text(readings),
            "reasoning": reasoning_text(readings.stats),
            "model": model_text(model, self._blocks["model"].size.height),
        }
        for name, content in contents.items():
            self._blocks[name].update(content, layout=False)
        self._spark.data = list(readings.speeds)
