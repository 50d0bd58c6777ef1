"""The meters: what the engine is doing, how fast, and where the tokens of the prompt came from."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Sparkline, Static

from chatapp.safe import clean_line
from chatapp.tui import words
from chatapp.tui.live import ModelState, Readings, Reuse
from models.engine import ModelInfo

WIDTH = 31
"""Cells of a line in the panel."""

MUTED = "$foreground 60%"

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


def phase_text(readings: Readings, model: ModelState, now: float) -> Content:
    """Two lines: what is going on; how far it is and how long it will take."""
    if model.failure:
        return Content.assemble(("no model", "bold $error"), "\n", ("see the message on the left", MUTED))
    busy = readings.activity not in ("idle", "failed", "queued", "waiting")
    shown = readings if model.info or busy else model.progress
    activity = shown.activity if model.info or busy or shown.activity in _ONCE else "load"
    style = "bold $error" if activity == "failed" else "bold $success" if activity == "idle" else "bold $accent"
    return Content.assemble((_PHASES[activity], style), "\n", _progress(shown, now))


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


def context_text(readings: Readings, info: ModelInfo | None) -> Content:
    """How full the context is, and the memory the KV cache takes: by the formula, and measured."""
    used = readings.context_tokens
    if info is None:
        return Content.assemble(_label("context"), (f"{words.count(used)} tokens", "bold"))
    share = used / info.n_ctx if info.n_ctx else 0.0
    style = "$error" if share > 0.9 else "$primary"
    is_whole = readings.stats.kv_bytes is not None or readings.activity != "decode"
    measured = readings.stats.kv_bytes or (readings.reuse.kv_bytes if readings.reuse else None)
    written = readings.stats.kv_bytes_written
    return Content.assemble(
        _label("context"),
        (f"{words.count(used)} / {words.count(info.n_ctx)}", "bold"),
        "\n",
        (words.bar(share, WIDTH - 6), style),
        f" {share:4.0%}\n",
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


def came_back(reuse: Reuse) -> str:
    """One sentence on how a history became resident."""
    if reuse.restored:
        return f"restored {words.count(reuse.restored)} tokens in {words.seconds(reuse.restore_s)}"
    if reuse.prefilled:
        return f"prefilled {words.count(reuse.prefilled)} tokens in {words.seconds(reuse.prefill_s)}"
    return f"{words.count(reuse.resident)} tokens were still resident"


def model_text(model: ModelState) -> Content:
    """The model and the settings it runs with."""
    info = model.info
    if info is None:
        return Content.assemble(("-", "bold") if not model.failure else ("not loaded", "bold $error"))
    flash = "on" if info.flash_attention else "off"
    layers = f" · {info.gpu_layers} GPU layers" if info.gpu_layers else ""
    note = f"\n{clean_line(info.kv_note, 120)}" if info.kv_note else ""
    rules = "".join(f"\n{clean_line(one, 200)}" for one in info.notes)
    kind = "" if info.memory_kind == "dense" else f"\n{info.memory_kind} memory"
    if info.kv_state_bytes:
        kind += f", {words.size(info.kv_state_bytes)} a state"
    kv_type = "" if info.kv_type == "f16" else f" · KV {info.kv_type}"
    return Content.assemble(
        (clean_line(info.name, WIDTH * 2), "bold"),
        "\n",
        (
            f"flash attention {flash}\n{info.threads} thread{'s' if info.threads != 1 else ''}"
            f"{layers}{kv_type}{kind}{rules}",
            MUTED,
        ),
        (note, "$warning"),
    )


def one_line(readings: Readings, model: ModelState, now: float, width: int) -> Content:
    """The meters folded to one line: the parts that fit, the most telling first."""
    if model.failure:
        return Content.assemble(("no model", "bold $error"))
    loading = model.info is None
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
    parts = [phase, *speeds, *origins] if activity == "decode" else [phase, *origins, *speeds]
    if model.info and readings.context_tokens:
        parts.append(f"context {readings.context_tokens / model.info.n_ctx:.0%}")
    line = parts[0]
    for part in parts[1:]:
        if len(line) + 3 + len(part) > width:
            break
        line += f" · {part}"
    return Content.assemble((line[: len(parts[0])], "bold $accent"), line[len(parts[0]) :])


def _label(text: str) -> tuple[str, str]:
    return (f"{text:<8}", MUTED)


class Meters(VerticalScroll, can_focus=False):
    """The panel on the right. `show` paints it without a new layout of the window."""

    def __init__(self) -> None:
        super().__init__(id="meters")
        self._blocks = {
            name: Static("", id=f"meter-{name}", markup=False)
            for name in ("phase", "speed", "context", "reuse", "resume", "model")
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
            "model": model_text(model),
        }
        for name, content in contents.items():
            self._blocks[name].update(content, layout=False)
        self._spark.data = list(readings.speeds)
