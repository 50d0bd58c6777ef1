"""Errors of engines and models.

EngineError                 an engine could not do what was asked; the message is one sentence for the user
├── ModelError              the model cannot be used: no file, not a GGUF, damaged, does not fit
│   └── TemplateError       the model's chat template cannot be turned into append-only token runs
├── PromptTooLong           the prompt does not fit the context; nothing was evaluated
├── GrammarError            the grammar or JSON schema an answer was to follow cannot be used
├── EngineDied              the engine process ended, or did not answer in time
└── ProtocolError           the other side of the pipe broke the protocol
"""


class EngineError(Exception):
    """An engine could not do what was asked."""

    kind = "engine"


class ModelError(EngineError):
    """The model file cannot be used."""

    kind = "model"


class TemplateError(ModelError):
    """The chat template cannot be turned into append-only token runs."""

    kind = "template"


class PromptTooLong(EngineError):
    """The prompt does not fit the context; nothing was evaluated."""

    kind = "too_long"


class GrammarError(EngineError):
    """The grammar or JSON schema that an answer was to follow cannot be used."""

    kind = "grammar"


class EngineDied(EngineError):
    """The engine process ended, or did not answer in time."""

    kind = "died"


class ProtocolError(EngineError):
    """A line on the pipe was not what the protocol allows."""

    kind = "protocol"
