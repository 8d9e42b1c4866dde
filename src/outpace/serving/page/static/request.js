// The form as a request, and what in it cannot become one.

import { byId } from "./dom.js";

export class FormError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

// {path, body, method}: `method` is the drafting method as chosen, "" for the server's own.
export function readForm() {
  const prompt = byId("prompt").value;
  if (prompt === "") throw new FormError(byId("prompt"), "Write something to be answered first.");
  const isChat = byId("ask").elements.kind.value === "chat";
  const body = { stream: true, stream_options: { include_usage: true, include_steps: true } };
  if (isChat) {
    const system = byId("system").value;
    body.messages = system === "" ? [] : [{ role: "system", content: system }];
    body.messages.push({ role: "user", content: prompt });
  } else {
    body.prompt = prompt;
  }
  put(body, "temperature", decimal("temperature"));
  put(body, "top_p", decimal("top-p"));
  put(body, isChat ? "max_completion_tokens" : "max_tokens", whole("max-tokens"));
  put(body, "seed", whole("seed"));
  const schema = readSchema();
  if (schema !== null) {
    const wrapped = { name: "answer", schema, strict: true };
    body.response_format = { type: "json_schema", json_schema: wrapped };
  }
  const method = byId("method").value;
  const speculation = {};
  if (method !== "") speculation.method = method;
  if (method !== "none") put(speculation, "num_speculative_tokens", whole("draft-length"));
  if (Object.keys(speculation).length > 0) body.speculative_config = speculation;
  return { path: isChat ? "/v1/chat/completions" : "/v1/completions", body, method };
}

function put(body, name, value) {
  if (value !== null) body[name] = value;
}

function decimal(id) {
  return asNumber(byId(id), /^[+-]?(\d+([.,]\d*)?|[.,]\d+)$/, "a number");
}

function whole(id) {
  return asNumber(byId(id), /^[+-]?\d+$/, "a whole number");
}

function asNumber(field, pattern, what) {
  const text = field.value.trim();
  if (text === "") return null;
  if (!pattern.test(text)) {
    const name = field.labels[0].textContent;
    throw new FormError(field, `${name} must be ${what} or empty, not “${text}”.`);
  }
  return Number(text.replace(",", "."));
}

function readSchema() {
  const field = byId("schema");
  if (field.value.trim() === "") return null;
  try {
    return JSON.parse(field.value);
  } catch (error) {
    throw new FormError(field, `The JSON schema is not JSON: ${error.message}`);
  }
}
