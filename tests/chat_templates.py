"""Small chat templates of the kinds that models come with, and conversations with tools."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from outpace.models import tokenizer as ours
from outpace.models.chat import ChatTemplate

SPECIAL = {"bos_token": "<s>", "eos_token": "<e>"}

# No word of tools, and a system message of its own: SmolLM2's kind.
PLAIN = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# The same without a place for system messages: Gemma's kind.
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}"
)
# Hermes marks, results of neighbouring tool messages in one user turn: Qwen2.5's kind.
QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- 'Functions:\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' }}{{- tool | tojson }}
    {%- endfor %}
    {{- '\n</tools>\nCall them in <tool_call></tool_call>.<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>' ~ '\n' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|im_start|>' + m.role }}
        {%- if m.content %}{{- '\n' + m.content }}{%- endif %}
        {%- for call in m.tool_calls %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
# Bare JSON with parameters, one call a turn, python_tag: Llama 3.1's kind.
LLAMA = """\
{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if loop.first and tools is not none %}
        {{- '<|start_header_id|>user<|end_header_id|>\n\n' }}
        {{- 'Answer with {"name": function, "parameters": arguments}.\n\n' }}
        {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\n\n" }}{%- endfor %}
        {{- message['content'] | trim + "<|eot_id|>" }}
    {%- elif not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
# Calls in a list, ids of nine characters: Mistral's kind.
MISTRAL = """\
{%- set loop_messages = messages %}
{%- if messages[0].role == "system" %}
    {%- set system_message = messages[0].content %}{%- set loop_messages = messages[1:] %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message.role == "user" %}
        {%- if tools is not none and message == user_messages[-1] %}
            {{- "[AVAILABLE_TOOLS][" }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, value in tool.function.items() if key != "return" %}
                    {{- '"' + key + '": ' + value | tojson }}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- endif %}
            {%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\n\n" + message.content + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message.content + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS][" }}
        {%- for call in message.tool_calls %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] }}
            {%- if not call.id is defined or call.id | length != 9 %}
                {{- raise_exception("ids have 9 characters") }}
            {%- endif %}
            {{- ', "id": "' + call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message.role == "assistant" %}
        {{- " " + message.content + eos_token }}
    {%- elif message.role == "tool" %}
        {{- '[TOOL_RESULTS]{"content": ' + message.content + ', "call_id": "' }}
        {{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""
TEMPLATES = {
    "plain": PLAIN,
    "no_system": NO_SYSTEM,
    "qwen": QWEN,
    "llama": LLAMA,
    "mistral": MISTRAL,
}

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, in °C",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]


def tool_call(name: str, arguments: str, call_id: str = "abcdefgh1") -> dict[str, Any]:
    """A call as OpenAI's clients send it back."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def conversation(*, system: bool = True) -> list[dict[str, Any]]:
    """Question, call, result, answer, question."""
    messages = [
        {"role": "user", "content": "How warm is it in Köln?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [tool_call("get_weather", '{"city": "Köln", "days": 1}')],
        },
        {"role": "tool", "tool_call_id": "abcdefgh1", "content": "21 °C"},
        {"role": "assistant", "content": "21 °C."},
        {"role": "user", "content": "And <b>here</b>?"},
    ]
    return [{"role": "system", "content": "Be brief."}, *messages] if system else messages


def byte_tokenizer(
    template: str | None, special: tuple[str, ...] = (), added: tuple[str, ...] = ()
) -> ours.Tokenizer:
    """A tokenizer of bytes with a chat template.

    special: marks that are special tokens. added: marks that are tokens, but not special.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({byte: place for place, byte in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    marks = [*SPECIAL.values(), *special]
    backend.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    backend.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in added])
    chat = None if template is None else ChatTemplate(template, SPECIAL)
    ends = {backend.token_to_id("<e>")}
    return ours.Tokenizer(backend, end_token_ids=ends, chat=chat, name="bytes")
