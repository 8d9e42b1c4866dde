"""OpenAI's own client (`pip install openai`) at an Outpace server.

    outpace serve
    python examples/openai_client.py http://127.0.0.1:8000/v1

Instead of the argument, OPENAI_BASE_URL will do. A server with keys wants OPENAI_API_KEY.
"""

import json
import os
import sys
from typing import Any

from openai import OpenAI

DEFAULT_URL = "http://127.0.0.1:8000/v1"
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "season": {"enum": ["spring", "summer", "autumn", "winter"]},
    },
    "required": ["city", "season"],
    "additionalProperties": False,
}


def show_speculation(usage: Any) -> None:
    told = usage.model_extra["speculation"]  # what OpenAI's own usage does not have
    print(
        f"  [{told['method']}: {usage.completion_tokens} tokens in {told['num_target_passes']} "
        f"passes, {told['num_accepted_tokens']} of {told['num_draft_tokens']} drafted accepted]"
    )


url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("OPENAI_BASE_URL", DEFAULT_URL)
client = OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
model = client.models.list().data[0].id
question: Any = {"role": "user", "content": "Count from one to ten, in words."}
asked: Any = {"model": model, "messages": [question], "temperature": 0, "max_tokens": 64}
print(f"Model: {model}")

answer = client.chat.completions.create(**asked)
print(f"\nWhole: {answer.choices[0].message.content}")
show_speculation(answer.usage)

print("\nStreamed: ", end="")
for chunk in client.chat.completions.create(**asked, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)

without: Any = {"speculative_config": {"method": "none"}}
plain = client.chat.completions.create(**asked, extra_body=without)
print(f"\n\nThe same without drafts: {plain.choices[0].message.content}")
show_speculation(plain.usage)

asked["messages"] = [{"role": "user", "content": "When should one visit Paris? Answer in JSON."}]
wanted: Any = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}
trip = client.chat.completions.create(**asked, response_format=wanted).choices[0].message.content
print(f"\nBy a schema: {json.loads(trip or '')}")
