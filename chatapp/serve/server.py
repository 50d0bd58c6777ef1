"""The routes of `chatapp serve`, behind key and host: health, models, chat."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web

from chatapp.serve.chat import Chat, Served
from chatapp.serve.errors import ApiError, loading, of_field, stopping, too_large
from chatapp.serve.guard import Guard
from chatapp.serve.reply import model_of
from chatapp.serve.request import read_request
from sessions.errors import BadField

MOST_BODY_BYTES = 16 << 20
"""Several times what any context holds."""
BODY_S = 60.0
"""How long a body may take to arrive."""
MOST_HEADER_BYTES = 16 << 10
HEALTH = "/health"
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "chatapp"}
_NAME_CHARS = 100

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Answers HTTP requests; every refusal is an error object as OpenAI's API has it. Sends no CORS header."""

    def __init__(self, guard: Guard, chat: Chat, *, created: int, body_s: float = BODY_S) -> None:
        self.served: Served | None = None
        """The model, None while it is being loaded."""
        self.is_ending = False
        self._guard = guard
        self._chat = chat
        self._created = created
        self._body_s = body_s

    def runner(self, shut_s: float) -> web.AppRunner:
        """Return what runs the routes; connections have `shut_s` to close when it ends."""
        return web.AppRunner(
            self._application(),
            access_log=None,
            handler_cancellation=True,  # a client that goes away stops its answer
            auto_decompress=False,
            shutdown_timeout=shut_s,
            max_line_size=MOST_HEADER_BYTES,
            max_field_size=MOST_HEADER_BYTES,
        )

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._guarded], client_max_size=MOST_BODY_BYTES)
        application.on_response_prepare.append(_add_headers)
        application.add_routes(
            [
                web.get(HEALTH, self._health),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{name:.+}", self._model),
                web.post("/v1/chat/completions", self._answer),
            ]
        )
        return application

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._guard.check(
                request.headers.getall("Host", []),
                request.headers.get("Authorization"),
                needs_key=request.path != HEALTH,
            )
            return await handler(request)
        except ApiError as error:
            return _refused(error)
        except BadField as error:
            return _refused(of_field(error))
        except web.HTTPException as error:
            return _refused(_of_http(error))
        except ConnectionError:
            raise  # nobody is there to be told
        except Exception as error:  # noqa: BLE001 - the top of a request: the client is told, and what it said is not logged
            print(f"A request met an unexpected error ({type(error).__name__}).", file=sys.stderr)
            return _refused(
                ApiError(500, "server_error", f"The server met an unexpected error ({type(error).__name__}).")
            )

    async def _health(self, _: web.Request) -> web.Response:
        self._ready()
        return web.json_response({"status": "ok"})

    async def _models(self, _: web.Request) -> web.Response:
        served = self._ready()
        return web.json_response({"object": "list", "data": [model_of(served.name, served.info, self._created)]})

    async def _model(self, request: web.Request) -> web.Response:
        served = self._named(request.match_info["name"])
        return web.json_response(model_of(served.name, served.info, self._created))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self._ready()
        asked = read_request(await self._body(request))
        return await self._chat.answer(request, asked, self._named(asked.model))

    async def _body(self, request: web.Request) -> bytes:
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ApiError(415, "invalid_request_error", "The body is compressed: send it as it is.")
        if (request.content_length or 0) > MOST_BODY_BYTES:
            raise too_large(MOST_BODY_BYTES)
        try:
            async with asyncio.timeout(self._body_s):
                return await request.read()
        except TimeoutError as error:
            raise ApiError(408, "invalid_request_error", "The body did not arrive in time: send it again.") from error

    def _ready(self) -> Served:
        if self.is_ending:
            raise stopping()
        if self.served is None:
            raise loading()
        return self.served

    def _named(self, name: str | None) -> Served:
        """The model, if that is the one a client names; one that names none gets it too."""
        served = self._ready()
        if name is None or name.casefold() in (served.name.casefold(), served.info.name.casefold()):
            return served
        raise ApiError(
            404,
            "invalid_request_error",
            f"The model {name[:_NAME_CHARS]!r} is not served here: the only one is {served.name!r}.",
            code="model_not_found",
            param="model",
        )


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _refused(error: ApiError) -> web.Response:
    return web.json_response(error.body(), status=error.status, headers=error.headers)


def _of_http(error: web.HTTPException) -> ApiError:
    """What the framework refuses, in our words."""
    match error.status:
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return too_large(MOST_BODY_BYTES)
        case HTTPStatus.NOT_FOUND:
            return ApiError(
                404,
                "invalid_request_error",
                "There is nothing at this address: /v1/chat/completions, /v1/models and /health are what there is.",
                code="unknown_url",
            )
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = error.headers.get("Allow", "")
            return ApiError(
                405, "invalid_request_error", f"This address takes {allowed} only.", headers={"Allow": allowed}
            )
    return ApiError(error.status, "invalid_request_error", f"The request was refused ({error.reason}).")
