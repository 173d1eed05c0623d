"""`docs/configuration.md`, made from the table."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from peen.settings.table import NUMERIC, RENAMED, VARIABLES, Kind, Variable

_HEAD: Final = """\
# Configuration

Every setting is an environment variable, and nearly every one may also stand in `PEEN_CONFIG_DIR/peen.yaml` under its
key. The environment wins. With nothing set at all Peen starts: it listens on loopback and answers with the embedded
upstream `scripted`, which needs no key and no network.

- All settings are checked before anything starts, and all mistakes are reported together, each with an example.
- An empty variable counts as not set. Negative numbers are refused. `0` means the default, except where a row says
  otherwise.
- Durations are written like `500ms`, `30s`, `2m` or `1h30m`. Sizes are bytes.
- A `PEEN_` variable that means nothing is warned of; an unknown key in `peen.yaml` is an error. Both name the nearest
  known name.

```yaml
# PEEN_CONFIG_DIR/peen.yaml
logFormat: json
turnTimeout: 30m
strictHooks: on
upstreams:
  - name: demo
    type: scripted
    script: demo.yaml
```
"""

_COLUMNS: Final = "| Variable | Key | Value | Default | Example | Meaning |\n|---|---|---|---|---|---|"

_TAIL: Final = """\
## Upstreams

`PEEN_UPSTREAMS` is a JSON list (in `peen.yaml`: a list) of objects with these fields; any other field is an error.

| Field | Meaning |
|---|---|
| `name` | Unique, not empty, without `/`. A model is called `<name>/<model>`. |
| `type` | `anthropic`, `openai` (OpenAI, and most other servers of models), `zai-coding` (Z.ai's coding plan), or \
`scripted`. |
| `baseUrl` | Address of the provider: of `openai` and `zai-coding` up to and with its version (`/v1`), of `anthropic` \
without it. Default: that of OpenAI, Z.ai or Anthropic. |
| `api` | Of `openai`: `chat` (chat completions, the default) or `responses`. |
| `reasoning` | Of `openai` with chat completions: which answers go back to their model with their reasoning, \
`always` (the default), `calls` or `never`, see [Models](models.md). |
| `stream` | Not of `scripted`: `false` asks for each answer in one piece. |
| `apiKeyEnv` | Name of the variable that holds the key, never the key itself. It must be set. |
| `models` | Of a provider: ids of the models that it offers. Then it is not asked for them (`GET /models`). |
| `imageInput` | `false` marks every model of the upstream as text-only. |
| `prices` | Dollars per million tokens by name of model, see [Models](models.md). |
| `script` | Of `scripted`: path of a script, absolute or relative to `PEEN_CONFIG_DIR`. Without it the demo answers. |

Without `PEEN_UPSTREAMS`, `ANTHROPIC_API_KEY` gives the upstream `anthropic`, at `ANTHROPIC_BASE_URL` if that is set
too, and `OPENAI_API_KEY` gives `openai`, at `OPENAI_BASE_URL`; both keys give both, in this order. `peen run` and
`peen exec` say which upstream was chosen and why. [Models](models.md) tells how each of them is used.

A controller lists the models of every upstream when it starts. An upstream that does not answer offers none for now; it
is logged as `provider_discovery_failed` with the reason, and the controller starts also if no other upstream has a
model: sessions, feeds, transcripts and Stop work. A message whose model is missing for that reason has those upstreams
asked again, for at most 3 s and not within 5 s of the last time. If they answer, the message is carried out; otherwise
it is refused with `VALIDATION_FAILED` and the reason, and nothing is stored. A start is refused if a setting is wrong:
if all upstreams answered and none has a model, or if the upstream of `PEEN_DEFAULT_MODEL` answered without that model.

The base URLs are `https://api.anthropic.com` for `anthropic`, `https://api.openai.com/v1` for `openai` and
`https://api.z.ai/api/coding/paas/v4` for `zai-coding`. `PEEN_PROVIDER_IDLE_TIMEOUT` should be longer than a model
thinks without a word, and with `stream: false` than it takes for a whole answer. What is sent, what of a model's
reasoning goes back to it, and what follows when a provider fails stands in [Models](models.md).

Windows are taken from the list where it publishes them (`max_input_tokens`, `context_window`, `context_length` or
`max_model_len`); a smaller `PEEN_MAX_CONTEXT_TOKENS` holds in their place. What happens when a conversation outgrows
its window is told in [context.md](context.md).

## Directories

`PEEN_CONFIG_DIR` and `PEEN_STATE_DIR` must differ and neither may contain the other, also behind symbolic links. Both
are created with mode 0700 if they are missing. What exists is never changed: a state directory that other users can
write to is refused, with the command that mends it.

## What agents see

Workers get neither `PEEN_API_TOKEN` nor anything about the controller's files and listeners. Commands, hooks and MCP
servers inherit no `PEEN_` variable, no `apiKeyEnv` variable and no well-known provider key; they run with
`PAGER=cat`, `GIT_PAGER=cat`, `GIT_TERMINAL_PROMPT=0`, and `EDITOR=false` unless it is set.

## Names that are gone

| Name | What happens |
|---|---|
| `PEEN_WORKSPACE_ROOTS` | Refused: there is one root, `PEEN_WORKSPACE_ROOT`. |
| `PEEN_ENABLE_WORKSPACE_HOOKS` | Refused unless it is true: workspace hooks cannot be switched off. |
"""


def configuration_page() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    for section, variables in groupby(VARIABLES, key=lambda variable: variable.section):
        rows = "\n".join(_row(variable) for variable in variables)
        parts.append(f"## {section}\n\n{_COLUMNS}\n{rows}\n")
    renamed = "".join(f"| `{old}` | Warned of: it is now `{new}`. |\n" for old, new in RENAMED.items())
    return "\n".join([*parts, _TAIL + renamed])


def _row(variable: Variable) -> str:
    key = f"`{variable.key}`" if variable.in_file else "environment only"
    default = variable.unset if variable.default in (None, "") else f"`{variable.default}`"
    example = f"`{variable.example}`" if variable.example else ""
    return f"| `{variable.name}` | {key} | {_written(variable)} | {default} | {example} | {variable.meaning} |"


def _written(variable: Variable) -> str:
    if variable.kind is Kind.CHOICE:
        return ", ".join(f"`{word}`" for word in variable.words)
    bound = 2**31 - 1
    if variable.kind in NUMERIC and variable.kind is not Kind.DURATION and variable.most != bound:
        return f"{variable.kind.value}, at most {variable.most}"
    written: str = variable.kind.value
    return written
