"""`sessions export` and `sessions import`: conversations to files and back."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

if TYPE_CHECKING:
    from sessions.importing import Format, Outcome
    from sessions.store import Store
    from sessions.transcript import Transcript

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
OpenStore: TypeAlias = Callable[[click.Context, dict[str, Any]], AbstractContextManager["Store"]]

EXPORT_FORMATS = ("md", "json", "txt")
IMPORT_FORMATS = ("auto", "chatapp", "chatgpt", "claude", "openwebui", "ollama", "llm", "markdown")
SOME_FAILED = 3
MAX_SENTENCES = 20

CHANGES = {
    "replaced": "damaged characters were replaced",
    "merged": "messages were joined to the one of the same role before them",
    "tool": "messages to and from tools were left out",
    "hidden": "messages that were never shown were left out",
    "empty": "messages without text were left out",
    "system": "later system prompts were left out",
    "unreachable": "messages that no first message leads to were left out",
    "tags": "unfit tags were left out",
}
"""What is said about a change, by its word in the JSON."""


def attach(group: click.Group, folder_options: Decorator, json_option: Decorator, store: OpenStore) -> None:
    """Add both commands to the group of commands for conversations."""

    @group.command("export")
    @click.argument("ids", metavar="[ID]...", nargs=-1)
    @click.option("--all", "is_all", is_flag=True, help="All conversations that are not in the trash.")
    @click.option(
        "--format", "format_", type=click.Choice(EXPORT_FORMATS), help="Default: by the name of FILE, else md."
    )
    @click.option(
        "-o", "--output", metavar="FILE|FOLDER", default="-", help="A folder gets a file each. Default: stdout."
    )
    @click.option("--tokens", is_flag=True, help="JSON: with the token ids.")
    @folder_options
    @click.pass_context
    def export_sessions(
        context: click.Context,
        /,
        ids: tuple[str, ...],
        is_all: bool,
        format_: str | None,
        output: str,
        tokens: bool,
        **flags: Any,
    ) -> None:
        """Write conversations as Markdown, text, or JSON that `sessions import` takes back whole."""
        if not output:
            raise click.UsageError("-o takes the name of a new file or of a folder.")
        if bool(ids) == is_all:
            raise click.UsageError("Name the conversations by ID, or give --all.")
        chosen = format_ or {".json": "json", ".txt": "txt"}.get(Path(output).suffix.lower(), "md")
        if tokens and chosen != "json":
            raise click.UsageError("Token ids are part of JSON only: add --format json.")
        with store(context, flags) as opened:
            _export(opened, _chosen(opened, ids), chosen, output, tokens=tokens)

    @group.command("import")
    @click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
    @click.option("--format", "format_", type=click.Choice(IMPORT_FORMATS), default="auto", help="Default: auto.")
    @click.option("--dry-run", is_flag=True, help="Say what would be imported, and change nothing.")
    @click.option("--tokens", is_flag=True, help="Take token ids too: only from a file you trust.")
    @json_option
    @folder_options
    @click.pass_context
    def import_sessions(
        context: click.Context,
        /,
        files: tuple[Path, ...],
        format_: str,
        dry_run: bool,
        tokens: bool,
        as_json: bool,
        **flags: Any,
    ) -> None:
        """Add conversations from exports of chatapp, ChatGPT, Claude, Open WebUI, Ollama's app, llm, or Markdown."""
        format: Any = None if format_ == "auto" else format_  # noqa: A001 - what the option is called
        with store(context, flags) as opened:
            reports = [_import(opened, path, format, tokens=tokens, dry_run=dry_run) for path in files]
        if as_json:
            from chatapp.console import print_json

            print_json([report.as_object() for report in reports])
        else:
            for report in reports:
                report.tell(dry_run=dry_run)
        context.exit(_exit_code(reports))


def _chosen(store: Store, ids: Sequence[str]) -> Iterator[str]:
    """Yield ids in the order asked for; all of them in the order they were made."""
    from sessions.transcript import all_ids

    if ids:
        found = [store.find(prefix).id for prefix in ids]  # before anything is written
        return iter(dict.fromkeys(found))
    return iter(all_ids(store))


def _export(store: Store, ids: Iterator[str], format_: str, output: str, *, tokens: bool) -> None:
    from chatapp.console import Narrator, print_text
    from sessions.exportfiles import make_folder, write_file, write_into
    from sessions.transcript import load

    transcripts = (load(store, session_id) for session_id in ids)
    if output == "-":
        is_shown = sys.stdout.isatty()
        for chunk in _rendered(transcripts, format_, tokens=tokens, ascii_only=is_shown):
            print_text(chunk)
        return
    target = Path(output)
    if not (target.is_dir() or output.endswith(("/", os.sep))):
        path = write_file(target, _rendered(transcripts, format_, tokens=tokens))
        Narrator().hint(f"Written: {path}")
        return
    make_folder(target)
    n_written = 0
    for transcript in transcripts:
        chunks = _rendered(iter([transcript]), format_, tokens=tokens)
        write_into(target, transcript.session.title, f".{format_}", chunks)
        n_written += 1
    Narrator().hint(f"{n_written:,} file(s) written to {target}.")


def _rendered(
    transcripts: Iterator[Transcript], format_: str, *, tokens: bool, ascii_only: bool = False
) -> Iterator[str]:
    from sessions import exporting, portable

    if format_ == "json":
        yield from portable.write(transcripts, tokens=tokens, ascii_only=ascii_only)
        return
    render = exporting.markdown if format_ == "md" else exporting.plain
    for number, transcript in enumerate(transcripts):
        if number:
            yield "\n\n"
        yield from render(transcript)


@dataclass(slots=True)
class _Report:
    """What became of a file; `error` is set when it could not be read at all."""

    path: Path
    outcomes: list[Outcome] = field(default_factory=list)
    error: str | None = None

    def count(self, status: str) -> int:
        return sum(outcome.status == status for outcome in self.outcomes)

    @property
    def changes(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for outcome in self.outcomes:
            if outcome.status == "added":
                total.update(outcome.changes)
        return total

    def as_object(self) -> dict[str, Any]:
        """Return what --json prints for the file."""
        return {
            "file": str(self.path),
            "error": self.error,
            "added": self.count("added"),
            "there": self.count("there"),
            "empty": self.count("empty"),
            "failed": self.count("failed"),
            "changes": {word: self.changes[word] for word in CHANGES},
            "conversations": [
                {
                    "index": outcome.index,
                    "title": outcome.title,
                    "status": outcome.status,
                    "id": outcome.id,
                    "reason": outcome.reason,
                }
                for outcome in self.outcomes
            ],
        }

    def tell(self, *, dry_run: bool) -> None:
        """Print the counts, and say on stderr what failed and what was changed."""
        from chatapp.console import Narrator, print_text
        from chatapp.safe import clean_line

        narrator = Narrator()
        if self.error:
            narrator.notice(self.error)
            return
        failed = [outcome for outcome in self.outcomes if outcome.status == "failed"]
        for outcome in failed[:MAX_SENTENCES]:
            title = f" ({clean_line(outcome.title, 60)})" if outcome.title else ""
            place = f"Conversation {outcome.index}{title}" if outcome.index else "The rest of the file"
            narrator.notice(f"{place} was not imported: {outcome.reason}")
        if len(failed) > MAX_SENTENCES:
            narrator.notice(f"{len(failed) - MAX_SENTENCES:,} more were not imported: --json lists them all.")
        for word, sentence in CHANGES.items():
            if n := self.changes[word]:
                narrator.notice(f"{n:,} {sentence}.")
        said = "would be added" if dry_run else "added"
        counts = [f"{self.count('added'):,} {said}", f"{self.count('there'):,} already there"]
        counts += [f"{n:,} {word}" for word in ("empty", "failed") if (n := self.count(word))]
        print_text(f"{clean_line(str(self.path), 200)}: {', '.join(counts)}\n")


def _import(store: Store, path: Path, format_: Format | None, *, tokens: bool, dry_run: bool) -> _Report:
    from chatapp.console import Narrator
    from sessions.errors import BadRequest
    from sessions.importing import import_file

    report = _Report(path)
    narrator = Narrator()
    try:
        for outcome in import_file(store, path, format=format_, tokens=tokens, dry_run=dry_run):
            report.outcomes.append(outcome)
            if len(report.outcomes) % 100 == 0:
                narrator.line(f"{len(report.outcomes):,} conversations read")
    except BadRequest as error:
        report.error = str(error)
    narrator.clear()
    return report


def _exit_code(reports: Sequence[_Report]) -> int:
    n_failed = sum(report.count("failed") + (report.error is not None) for report in reports)
    n_read = sum(len(report.outcomes) - report.count("failed") for report in reports)
    return 0 if not n_failed else SOME_FAILED if n_read else 1
