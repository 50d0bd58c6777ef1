"""`chatapp sessions why`: where the time of an answer went, in sentences."""

from __future__ import annotations

from typing import Any

import click

from chatapp.options import folder_options, json_option, store_of


@click.command()
@click.argument("session_id", metavar="ID")
@click.argument("message_id", metavar="[MESSAGE]", required=False, type=int)
@json_option
@folder_options
@click.pass_context
def why(context: click.Context, /, session_id: str, message_id: int | None, as_json: bool, **flags: Any) -> None:
    """Say where the time of an answer went: of the last one that is shown, or of MESSAGE."""
    from chatapp.console import print_json, print_text
    from chatapp.objects import stats_object
    from chatapp.why import explain, measured_answer

    with store_of(context, flags) as opened:
        session = opened.find(session_id)
        answer = measured_answer(opened.messages(session.id), message_id)
    if answer is None or answer.stats is None:
        raise click.ClickException(
            "There is no measured answer to explain: `chatapp sessions show` lists the messages with their numbers."
        )
    found = explain(answer.stats)
    if as_json:
        print_json(
            {
                "session": session.id,
                "message": answer.id,
                "sentences": list(found.sentences),
                "advice": found.advice,
                "stats": stats_object(answer.stats),
            }
        )
        return
    for sentence in (*found.sentences, *(["", found.advice] if found.advice else [])):
        print_text(f"{sentence}\n")
