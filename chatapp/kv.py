"""The `kv` commands: what is stored of conversations' KV, checking it, and deleting it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from chatapp.config import Settings
from chatapp.console import Narrator, print_json, print_text
from chatapp.listing import table, when
from chatapp.safe import clean_line
from models.kvbudget import size
from models.kvcare import FOLDER, Freed, clear, clear_chains, known_mac_key, prune
from models.kvstatus import KvStatus, ModelStatus, SessionStatus, Tips, status
from models.kvverify import VerifyReport, verify

SHORT = 12
"""Characters of a fingerprint that are shown."""
LARGEST = 10
"""Conversations that `kv status` lists unless all are wanted."""


def show_status(settings: Settings, tips: Tips, titles: Mapping[str, str], *, with_all: bool, as_json: bool) -> None:
    """Print what is stored; `tips` and `titles` are those of the conversations.

    Without `with_all`, people see the largest conversations only; JSON has all.
    """
    with _reporting(settings):
        found = status(_root(settings), clock=time.time, settings=settings.kv, tips=tips)
    if as_json:
        print_json(status_object(found, titles))
        return
    limit = "no daily limit" if found.daily_limit_bytes is None else f"at most {size(found.daily_limit_bytes)} a day"
    print_text(
        f"stored   {size(found.total_bytes)} in {found.n_segments:,} segments, at most {size(found.budget_bytes)}; "
        f"{size(found.free_floor_bytes)} of the disk stay free\n"
        f"written  {size(found.written_today_bytes)} today, {size(found.written_total_bytes)} ever; {limit}\n"
    )
    if found.damaged_bytes:
        print_text(f"damaged  {size(found.damaged_bytes)} set aside; `chatapp kv prune` deletes them\n")
    # An empty generation is only worth a line if something is wrong with it.
    models = [one for one in found.models if one.n_bytes or one.self_test is False or not one.is_usable]
    if models:
        print_text("\nModels\n" + table([_model_row(model) for model in models]))
    sessions = [session for session in found.sessions if session.n_bytes]
    if not sessions:
        return
    largest = sessions if with_all else sorted(sessions, key=lambda one: -one.n_bytes)[:LARGEST]
    print_text("\nConversations\n" + table([_session_row(one, titles) for one in largest]))
    if len(largest) < len(sessions):
        Narrator().hint(f"These are the {len(largest)} largest: `chatapp kv status --all` lists all {len(sessions):,}.")


def check(settings: Settings, *, repair: bool, as_json: bool) -> bool:
    """Read everything that is stored and print what is wrong; True if nothing is, or nothing any more."""
    narrator = Narrator()
    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        share = 100 * done // max(1, total)
        if share != shown:
            shown = share
            narrator.line(f"checking stored KV {share} %")

    try:
        with _reporting(settings):
            mac_key = known_mac_key(settings.data_dir)
            report = verify(_root(settings), mac_key, repair=repair, progress=progress)
    finally:
        narrator.clear()
    if as_json:
        print_json(report_object(report))
    else:
        _print_report(report)
    return report.is_fine


def prune_to(settings: Settings, to_bytes: int | None, *, as_json: bool) -> None:
    """Evict down to a size, or to the budget, and print what that freed."""
    narrator = Narrator()
    narrator.line("pruning stored KV")
    try:
        with _reporting(settings):
            freed = prune(_root(settings), settings=settings.kv, to_bytes=to_bytes)
    finally:
        narrator.clear()
    _print_freed(freed, as_json=as_json)


def clear_all(settings: Settings, *, yes: bool, as_json: bool) -> None:
    """Delete everything, once the user agrees."""
    with _reporting(settings):
        total = status(_root(settings), clock=time.time, settings=settings.kv).total_bytes
    _agree(f"Delete all stored KV ({size(total)})?", yes=yes)
    with _reporting(settings):
        freed = clear(_root(settings))
    _print_freed(freed, as_json=as_json)


def clear_model(settings: Settings, wanted: str, *, yes: bool, as_json: bool) -> None:
    """Delete what is stored of one model, named as `kv status` shows it."""
    with _reporting(settings):
        found = status(_root(settings), clock=time.time, settings=settings.kv)
    model = choose_model(found.models, wanted)
    name = clean_line(model.name, 60) or "a model without a name"
    _agree(f"Delete the stored KV of {name}, {clean_line(model.settings, 60)} ({size(model.n_bytes)})?", yes=yes)
    with _reporting(settings):
        freed = clear(_root(settings), fingerprints=[bytes.fromhex(model.fingerprint)])
    _print_freed(freed, as_json=as_json)


def clear_session(settings: Settings, session_id: str, title: str, tips: Tips, *, yes: bool, as_json: bool) -> None:
    """Delete what only this conversation reaches."""
    with _reporting(settings):
        sessions = status(_root(settings), clock=time.time, settings=settings.kv, tips=tips).sessions
    own = sum(one.n_bytes - one.shared_bytes for one in sessions if one.session_id == session_id)
    name = clean_line(title, 60) or session_id
    _agree(f"Delete the stored KV of the conversation {name!r} ({size(own)})?", yes=yes)
    dead = [tip for _, tip in tips.get(session_id, ())]
    alive = [tip for other, ends in tips.items() if other != session_id for _, tip in ends]
    with _reporting(settings):
        freed = clear_chains(_root(settings), dead, alive)
    _print_freed(freed, as_json=as_json)


def choose_model(models: Sequence[ModelStatus], wanted: str) -> ModelStatus:
    """Return the one model of this name, or whose fingerprint begins so. Raises `UsageError` if it is not one."""
    found = [model for model in models if wanted and model.fingerprint.startswith(wanted.lower())]
    found = found or [model for model in models if model.name == wanted]
    if len(found) > 1:
        keys = ", ".join(model.fingerprint[:SHORT] for model in found)
        raise click.UsageError(f"More than one model is meant by {wanted!r}: give one of {keys}.")
    if not found:
        raise click.UsageError(f"No stored KV is of a model {wanted!r}: `chatapp kv status` shows all.")
    return found[0]


# --- JSON: an interface, so the keys stay; see docs/cli.md ---


def status_object(found: KvStatus, titles: Mapping[str, str]) -> dict[str, Any]:
    """Return what `kv status --json` prints."""
    return {
        "total_bytes": found.total_bytes,
        "segments": found.n_segments,
        "budget_bytes": found.budget_bytes,
        "free_floor_bytes": found.free_floor_bytes,
        "written_today_bytes": found.written_today_bytes,
        "written_total_bytes": found.written_total_bytes,
        "daily_limit_bytes": found.daily_limit_bytes,
        "damaged_bytes": found.damaged_bytes,
        "models": [
            {
                "fingerprint": model.fingerprint,
                "name": model.name,
                "path": model.path,
                "settings": model.settings,
                "bytes": model.n_bytes,
                "state_bytes": model.state_bytes,
                "tokens": model.n_tokens,
                "segments": model.n_segments,
                "last_used": model.last_used,
                "usable": model.is_usable,
                "self_test": None if model.self_test is None else "passed" if model.self_test else "failed",
            }
            for model in found.models
        ],
        "sessions": [
            {
                "id": session.session_id,
                "title": titles.get(session.session_id, ""),
                "bytes": session.n_bytes,
                "shared_bytes": session.shared_bytes,
                "tokens": session.n_tokens,
                "last_used": session.last_used,
            }
            for session in found.sessions
        ],
    }


def report_object(report: VerifyReport) -> dict[str, Any]:
    """Return what `kv verify --json` prints."""
    return {
        "ok": report.n_ok,
        "damaged": report.count("damaged"),
        "unreadable": report.count("unreadable"),
        "missing": report.count("missing"),
        "unindexed": report.count("unindexed"),
        "bad_rows": report.count("bad row"),
        "foreign": report.n_foreign,
        "repaired": report.n_repaired,
        "bytes": report.n_bytes,
        "seconds": report.seconds,
        "faults": [{"kind": fault.kind, "where": fault.where, "detail": fault.detail} for fault in report.faults],
    }


# --- for people ---


def _model_row(model: ModelStatus) -> list[str]:
    remarks = [clean_line(model.settings, 60)]
    if not model.is_usable:
        remarks.append("of another llama.cpp build")
    if model.self_test is False:
        remarks.append("self-test failed")
    return [
        model.fingerprint[:SHORT],
        when(model.last_used) if model.last_used is not None else "",
        f">{size(model.n_bytes)}",
        f">{model.n_tokens:,} tokens",
        clean_line(model.name, 40) or "(no name)",
        ", ".join(filter(None, remarks)),
    ]


def _session_row(session: SessionStatus, titles: Mapping[str, str]) -> list[str]:
    return [
        session.session_id,
        when(session.last_used) if session.last_used is not None else "",
        f">{size(session.n_bytes)}",
        f">{size(session.shared_bytes)} shared",
        f">{session.n_tokens:,} tokens",
        clean_line(titles.get(session.session_id, ""), 60) or "(empty)",
    ]


def _print_report(report: VerifyReport) -> None:
    for fault in report.faults:
        print_text(f"{fault.kind:<10}  {clean_line(fault.where, 400)}: {clean_line(fault.detail, 200)}\n")
    rate = report.n_bytes / report.seconds if report.seconds else 0
    words = [f"{report.n_ok:,} files are as they should be"]
    if report.n_foreign:
        words.append(f"{report.n_foreign:,} belong to another data folder")
    if report.faults:
        repaired = f", {report.n_repaired:,} repaired" if report.n_repaired else ""
        words.append(f"{len(report.faults):,} fault{'s' if len(report.faults) > 1 else ''}{repaired}")
    print_text(f"{'; '.join(words)} ({size(report.n_bytes)}, {size(int(rate))}/s)\n")
    if not report.is_fine and not report.n_repaired:
        Narrator().hint("`chatapp kv verify --repair` sets damaged files aside and mends the index.")


def _print_freed(freed: Freed, *, as_json: bool) -> None:
    if as_json:
        print_json({"freed_bytes": freed.freed_bytes, "total_bytes": freed.total_bytes})
    else:
        print_text(f"{size(freed.freed_bytes)} freed, {size(freed.total_bytes)} stored\n")


# --- inside ---


def _root(settings: Settings) -> Path:
    return settings.cache_dir / FOLDER


def _agree(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("Nobody can be asked here: --yes says that it may be deleted.")
    if not click.confirm(f"{question} Conversations stay; their next answer begins later", err=True):
        raise click.ClickException("Nothing was deleted.")


@contextmanager
def _reporting(settings: Settings) -> Iterator[None]:
    try:
        yield
    except TimeoutError as exc:
        raise click.ClickException(f"Stored KV is kept busy ({exc}): try again.") from exc
    except OSError as exc:
        raise click.ClickException(
            f"Stored KV in {_root(settings)} cannot be used ({exc.strerror or exc}): "
            "`chatapp kv verify --repair` mends its index, and the folder may be deleted."
        ) from exc
