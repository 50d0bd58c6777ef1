"""An OpenAI-compatible endpoint over the engine and its stored KV."""
