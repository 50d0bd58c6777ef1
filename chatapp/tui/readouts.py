"""What the meters say in words and numbers: what the engine does, memory, where a prompt came from, the model."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content

from chatapp.misstexts import reason_text
from chatapp.safe import clean, clean_line
from chatapp.texts import tr, tr_later, tr_n
from chatapp.tui import words
from chatapp.tui.live import Activity, ModelState, Readings, Reuse
from chatapp.tui.serverlines import settings_lines
from chatapp.tui.timing import MUTED, label
from models.engine import MemoryKind, ModelInfo, TurnStats

WIDTH = 31
"""Cells of a line in the panel."""

NOTE_ROWS = 6
"""Lines that notes on the template may take in the panel."""

_PHASES: dict[Activity, str] = {
    "idle": tr_later("ready"),
    "waiting": tr_later("starting"),
    "queued": tr_later("queued behind another answer"),
    "failed": tr_later("failed"),
    "load": tr_later("loading the model"),
    "wait": tr_later("waiting for the server"),
    "tune": tr_later("measuring this machine"),
    "check": tr_later("checking that KV comes back"),
    "restore": tr_later("restore: reading KV from disk"),
    "prefill": tr_later("prefill: reading the prompt"),
    "decode": tr_later("decode: writing"),
}
_MEMORIES: dict[MemoryKind, str] = {
    "dense": "",
    "sliding window": tr_later("sliding window memory"),
    "hybrid": tr_later("hybrid memory"),
    "recurrent": tr_later("recurrent memory"),
}
ONCE = ("tune", "check")
"""Parts of a load that happen once for a model and a machine, and that have a name of their own."""
MARKS = (("█", "$primary"), ("▓", "$secondary"), ("░", "$accent"))
"""Resident, restored, prefilled: told apart by the glyph too, for screens without colour."""
ALARMS: dict[words.Fullness, tuple[str, str]] = {
    "": ("$primary", ""),
    "warning": ("$warning", "!"),
    "error": ("$error", "!!"),
}
"""Style and glyph of the context, by how full it is."""


def phase_text(readings: Readings, model: ModelState, now: float) -> Content:
    """Two lines: what is going on; how far it is and how long it will take."""
    busy = is_busy(readings)
    if model.failure and not busy:
        return Content.assemble((tr("no model"), "bold $error"), "\n", (tr("see the message on the left"), MUTED))
    shown = readings if model.info or busy else model.progress
    activity = shown.activity if model.info or busy or shown.activity in ONCE else "load"
    style = "bold $error" if activity == "failed" else "bold $success" if activity == "idle" else "bold $accent"
    return Content.assemble((tr(_PHASES[activity]), style), "\n", _progress(shown, now))


def is_busy(readings: Readings) -> bool:
    """True while the engine works for this conversation, be it to load another model."""
    return readings.activity not in ("idle", "failed", "queued", "waiting")


def ahead_text(readings: Readings) -> str:
    """How much of the draft in the box is read ahead; empty if nothing is."""
    ahead = readings.ahead
    if ahead is None or not ahead.n_ready or readings.activity != "idle":
        return ""
    return tr_n("draft: {n} token read ahead", "draft: {n} tokens read ahead", ahead.n_ready).format(
        n=words.count(ahead.n_ready)
    )


def _progress(shown: Readings, now: float) -> Content:
    if not shown.total or shown.activity in ("idle", "failed"):
        return Content.assemble((ahead_text(shown), MUTED))
    share = shown.done / shown.total
    eta = shown.eta(now)
    left = " " + tr("{time} left").format(time=words.seconds(eta)) if eta is not None else ""
    text = f" {share:4.0%}{left}"
    return Content.assemble((words.bar(share, max(4, WIDTH - cell_len(text))), "$accent"), text)


def context_share(used: int, info: ModelInfo | None) -> float:
    """How much of the context is used, from 0 to 1; 0 while no model is loaded."""
    return used / info.n_ctx if info and info.n_ctx else 0.0


def context_text(readings: Readings, info: ModelInfo | None) -> Content:
    """Four lines: how full the context is; the KV cache in memory, measured and by the formula; what was written."""
    used = readings.context_tokens
    if info is None:
        n_tokens = tr_n("{n} token", "{n} tokens", used).format(n=words.count(used))
        return Content.assemble(label("context"), (n_tokens, "bold"))
    share = context_share(used, info)
    level = words.fullness(share)
    style, alarm = ALARMS[level]
    predicted = tr("predicted {size}").format(size=words.size(used * info.kv_bytes_per_token))
    if info.server:
        predicted = tr("at the server")
    measured = readings.stats.kv_bytes
    if measured is None and readings.activity != "decode":  # of the prompt, which grows by what is written now
        measured = readings.reuse.kv_bytes if readings.reuse else None
    written = readings.stats.kv_bytes_written
    return Content.assemble(
        label("context"),
        (f"{words.count(used)} / {words.count(info.n_ctx)}", "bold"),
        "\n",
        (words.bar(share, WIDTH - 8), style),
        (f" {share:4.0%}{alarm:>3}\n", f"bold {style}" if level else ""),
        ("KV ", MUTED),
        (words.size(measured) if measured else "-", "bold"),
        (f", {predicted}\n", MUTED),
        label("written"),
        ("- " if written is None else words.size(written) + " ", "bold"),
        (tr("last turn"), MUTED),
    )


def reuse_text(readings: Readings) -> Content:
    """Where this turn's prompt came from, as numbers and as one bar."""
    reuse, stats = readings.reuse, readings.stats
    counts = (stats.resident_tokens or 0, stats.restored_tokens or 0, stats.prefilled_tokens or 0)
    if reuse:
        counts = (reuse.resident, reuse.restored, reuse.prefilled)
    names = (tr("resident"), tr("restored"), tr("prefilled"))
    is_unknown = reuse is None and stats.prompt_tokens is not None and stats.resident_tokens is None
    lines = [
        Content.assemble(
            (f"{mark} ", style), f"{name} ", (tr("unknown") if is_unknown else words.count(n), "bold"), "\n"
        )
        for (mark, style), name, n in zip(MARKS, names, counts, strict=True)
    ]
    cells = words.shares(counts, WIDTH)
    strip = Content.assemble(
        *[(mark * n, style) for (mark, style), n in zip(MARKS, cells, strict=True)],
    )
    return Content("").join([*lines, strip if sum(counts) else Content("·" * WIDTH)])


def resume_text(readings: Readings) -> Content:
    """How the conversation came back, and in words why KV on disk was not used, if so."""
    parts: list[Content | tuple[str, str]] = []
    if readings.came_back:
        parts.append((came_back(readings.came_back), "$secondary"))
    reason = readings.reuse.miss_reason if readings.reuse else None
    if reason and not readings.is_first:
        told = tr("not from disk: {reason}").format(reason=clean_line(reason_text(reason), 120))
        parts.append(("\n" + told, "$warning"))
    if readings.kv_note:
        parts.append(("\n" + clean_line(readings.kv_note, 120), "$warning"))
    return Content.assemble(*parts)


def reasoning_text(stats: TurnStats) -> Content:
    """What became of the last answer's reasoning; empty if it had none."""
    if not stats.reasoning_tokens:
        return Content("")
    text = (
        tr("reasoning {n} tokens, stripped: the answer was read again")
        if stats.stripped_tokens
        else tr("reasoning {n} tokens, kept in the prefix")
    )
    return Content.assemble((text.format(n=words.count(stats.reasoning_tokens)), MUTED))


def came_back(reuse: Reuse) -> str:
    """One sentence on how a history became resident."""
    if reuse.restored:
        took = words.seconds(reuse.restore_s)
        return tr("restored {n} tokens in {time}").format(n=words.count(reuse.restored), time=took)
    if reuse.prefilled:
        took = words.seconds(reuse.prefill_s)
        return tr("prefilled {n} tokens in {time}").format(n=words.count(reuse.prefilled), time=took)
    return tr("{n} tokens were still resident").format(n=words.count(reuse.resident))


def model_text(model: ModelState, n_rows: int) -> Content:
    """The model and the settings it runs with, in `n_rows` lines; notes that have no place are named by number."""
    info = model.info
    if info is None:
        return Content.assemble(("-", "bold") if not model.failure else (tr("not loaded"), "bold $error"))
    lines = [(line, "bold") for line in words.wrapped(clean_line(info.name, WIDTH * 2), WIDTH)]
    lines += [(line, MUTED) for fact in settings_of(info) for line in words.wrapped(fact, WIDTH)]
    if info.kv_note:
        lines += [(line, "$warning") for line in words.wrapped(clean_line(info.kv_note, 120), WIDTH)]
    notes = [line for note in info.notes for line in words.wrapped(clean_line(note, 400), WIDTH)]
    if len(notes) > min(NOTE_ROWS, n_rows - len(lines)):
        n = len(info.notes)
        notes = [tr_n("{n} note on the template: help", "{n} notes on the template: help", n).format(n=n)]
    lines += [(line, MUTED) for line in notes]
    return Content("\n").join(Content.assemble((clean(line), style)) for line, style in lines)


def settings_of(info: ModelInfo) -> list[str]:
    """What a model runs with, a line for each."""
    if info.server:
        return settings_lines(info)
    numbers = [tr_n("{n} thread", "{n} threads", info.threads).format(n=info.threads)]
    if info.gpu_layers:
        numbers.append(tr("{n} GPU layers").format(n=info.gpu_layers))
    if info.kv_type != "f16":
        numbers.append(f"KV {info.kv_type}")
    lines = [tr("flash attention on") if info.flash_attention else tr("flash attention off"), " · ".join(numbers)]
    if memory := _MEMORIES[info.memory_kind]:
        state = ", " + tr("{size} a state").format(size=words.size(info.kv_state_bytes)) if info.kv_state_bytes else ""
        lines.append(tr(memory) + state)
    return lines
