"""What a client is told when a request is not answered, as OpenAI's API says it.

ApiError                the request was not answered; the message is one sentence for whoever wrote the client
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from models.engine import Failed
from sessions.errors import BadField

Kind = Literal[
    "invalid_request_error", "authentication_error", "rate_limit_error", "service_unavailable_error", "server_error"
]


class ApiError(Exception):
    """A request was not answered."""

    def __init__(
        self,
        status: int,
        kind: Kind,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: object,
    ) -> None:
        """`status` is HTTP's, `param` the field it is about; `more` stands in the object beside the usual fields."""
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self._error = {"message": message, "type": kind, "param": param, "code": code, **more}

    def body(self) -> dict[str, Any]:
        """The JSON object a client is sent."""
        return {"error": self._error}


def of_field(error: BadField) -> ApiError:
    """Return what a client is told of something in the body that cannot be done."""
    return ApiError(400, "invalid_request_error", str(error), code=error.code, param=error.param)


def loading() -> ApiError:
    """The model is not there yet."""
    return ApiError(
        503,
        "service_unavailable_error",
        "The model is being loaded: try again in a few seconds.",
        code="model_loading",
        headers={"Retry-After": "2"},
    )


def stopping() -> ApiError:
    """The server is being ended."""
    return ApiError(503, "service_unavailable_error", "The server is being ended: ask again later.", code="stopping")


def busy(n_waiting: int) -> ApiError:
    """As many requests wait as may."""
    return ApiError(
        429,
        "rate_limit_error",
        f"{n_waiting} requests wait already, which is as many as may (--max-waiting): ask again in a few seconds.",
        code="queue_full",
        headers={"Retry-After": "5"},
    )


def too_large(most_bytes: int) -> ApiError:
    """The body is larger than any is read."""
    return ApiError(
        413,
        "invalid_request_error",
        f"The body is larger than {most_bytes >> 20} MiB: send less text, no context holds so much.",
        code="body_too_large",
    )


def of_failure(failed: Failed, *, n_ctx: int | None) -> ApiError:
    """Return what a client is told of a failure of the engine."""
    match failed.kind:
        case "too_long":
            return ApiError(
                400,
                "invalid_request_error",
                failed.message,
                code="context_length_exceeded",
                param="messages",
                n_ctx=n_ctx,
            )
        case "grammar" | "gave_up":
            return of_field(BadField("grammar", failed.message, code="invalid_grammar"))
        case "template":
            return of_field(BadField("messages", failed.message))
        case "cancelled":
            return stopping()
        case "busy":  # a server behind this one
            return ApiError(
                503,
                "service_unavailable_error",
                failed.message,
                code="engine_busy",
                headers={"Retry-After": "5"},
            )
    return ApiError(500, "server_error", failed.message, code=f"engine_{failed.kind}")
