"""A short-lived process that renders an untrusted chat template: one JSON object in, one out, then it ends.

Run as a script by `models.template` and imported by nobody: it depends on jinja2 and the standard library
alone, so isolated mode (`-I`) finds all of it wherever chatapp itself was put.

In: `{"template", "bos_token", "eos_token", "today", "time_limit_s", "conversations": [{"messages",
"add_generation_prompt"}]}`; `today` (ISO) is the only day a template is told.
Out: `{"error": null | why no conversation was rendered, "renderings": [{"text", "error", "clock"}]}`, ASCII only.
"""

from __future__ import annotations

import datetime
import faulthandler
import json
import sys
import time
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

MEMORY_LIMIT_BYTES = 1 << 30
TEXT_LIMIT = 1 << 18
ERROR_LIMIT = 2_000


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the answer for training; when rendering, it prints what it holds."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance variable

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Return the statements between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Renderer:
    """A compiled template with the environment that the Transformers library gives chat templates."""

    def __init__(self, template: str, *, bos_token: str, eos_token: str, today: str) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _raise, "strftime_now": self._now}
        # At noon: what a template computes from it stays on that day.
        self._frozen = datetime.datetime.combine(datetime.date.fromisoformat(today), datetime.time(12))
        self._clock = False
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._template = environment.from_string(template)

    def render(self, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> dict[str, Any]:
        """Render one conversation; what the template raises is returned as `error`."""
        self._clock = False
        text, error = "", None
        try:
            chunks = self._template.generate(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._tokens,
            )
            for chunk in chunks:
                text += chunk
                if len(text) > TEXT_LIMIT:
                    text, error = "", f"the text is longer than {TEXT_LIMIT:,} characters"
                    break
        except Exception as exc:  # noqa: BLE001 - anything can come out of a template; all of it is reported
            text, error = "", _described(exc)
        return {"text": text, "error": error, "clock": self._clock}

    def _now(self, form: str) -> str:
        self._clock = True
        return self._frozen.strftime(form)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes < > & ' for HTML, which no model was trained with.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _described(exc: Exception) -> str:
    if isinstance(exc, MemoryError):
        return f"it needs more than {MEMORY_LIMIT_BYTES >> 30} GiB of memory"
    text = str(exc) if isinstance(exc, jinja2.TemplateError) else f"{type(exc).__name__}: {exc}"
    return text[:ERROR_LIMIT]


def _limit_process(time_limit_s: float) -> None:
    """Cap time on each system; memory, processor time and core files where the system can."""
    # A thread in C: it ends the process even while a long native call holds the interpreter lock.
    faulthandler.dump_traceback_later(time_limit_s, exit=True)
    try:
        import resource
    except ImportError:  # Windows
        return
    cpu_s = int(time.process_time() + time_limit_s) + 1
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, MEMORY_LIMIT_BYTES),
    ):
        try:
            resource.setrlimit(kind, (limit, limit))
        except (ValueError, OSError):  # macOS knows RLIMIT_AS but refuses it; or a lower limit is set already
            pass


def main() -> None:
    """Answer the one request on stdin."""
    request = json.loads(sys.stdin.buffer.read())
    _limit_process(request["time_limit_s"])
    answer: dict[str, Any] = {"error": None, "renderings": []}
    try:
        renderer = Renderer(
            request["template"],
            bos_token=request["bos_token"],
            eos_token=request["eos_token"],
            today=request["today"],
        )
    except Exception as exc:  # noqa: BLE001 - a bad template fails in many ways; all are reported
        answer["error"] = _described(exc)
    else:
        answer["renderings"] = [
            renderer.render(item["messages"], add_generation_prompt=item["add_generation_prompt"])
            for item in request["conversations"]
        ]
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
