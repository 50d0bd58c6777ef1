"""Errors of conversations and their store.

SessionError                    something about a conversation; the message is one sentence for the user
├── SessionNotFound             no conversation has this id
├── SessionClosed               the conversation is done (or in the trash) and takes no message
├── BadRequest                  the request cannot be met as asked (empty prompt, second system prompt)
│   └── BadField                a field of a request that another program wrote cannot be done
└── StoreError                  the database or its folder cannot be read or written
    └── StoreTooNew             the database was written by a newer version
"""


class SessionError(Exception):
    """Something about a conversation could not be done."""


class SessionNotFound(SessionError):
    """No conversation has this id."""


class SessionClosed(SessionError):
    """The conversation takes no message."""


class BadRequest(SessionError):
    """The request cannot be met as asked."""


class BadField(BadRequest):
    """A field of a request that another program wrote cannot be done."""

    def __init__(self, param: str | None, message: str, *, code: str | None = None) -> None:
        """`param` is the field's path, None: the whole; `code` is OpenAI's word for what is wrong, if it has one."""
        super().__init__(message)
        self.param = param
        self.code = code


class StoreError(SessionError):
    """The database or its folder cannot be read or written."""


class StoreTooNew(StoreError):
    """The database was written by a newer version."""
