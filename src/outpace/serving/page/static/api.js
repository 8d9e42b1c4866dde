// Requests to this server, and the server-sent events that it answers with.

export class ApiFailure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export async function getJson(path, key) {
  const response = await ask(path, { headers: headers(key) });
  return response.json();
}

// The chunks of a streamed answer, in order. Returns once the server has said [DONE]; throws
// ApiFailure for anything else that ends the stream, and AbortError after `signal`.
export async function* chunks(path, body, { key, signal }) {
  const response = await ask(path, {
    method: "POST",
    headers: { ...headers(key), "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  for await (const data of events(response.body, signal)) {
    if (data === "[DONE]") return;
    const chunk = parsed(data);
    if (chunk.error) throw new ApiFailure(messageOf(chunk) ?? "The server reported an error.");
    yield chunk;
  }
  throw new ApiFailure("The connection ended before the answer did.");
}

const headers = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiFailure("The server cannot be reached.");
  }
  if (response.ok) return response;
  const said = messageOf(await response.json().catch(() => null));
  throw new ApiFailure(said ?? `The server answered with status ${response.status}.`, response.status);
}

function messageOf(body) {
  const message = body?.error?.message;
  return typeof message === "string" && message !== "" ? message : null;
}

function parsed(data) {
  try {
    const chunk = JSON.parse(data);
    if (chunk !== null && typeof chunk === "object") return chunk;
  } catch {
    // Said below, together with what is JSON but no object.
  }
  throw new ApiFailure("The server sent something that is not part of an answer.");
}

// The data of each event. Lines may end in \n or \r\n and be split anywhere between reads.
async function* events(stream, signal) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await read(reader, signal);
      rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = done ? "" : lines.pop();
      for (const line of lines.map((each) => each.replace(/\r$/, ""))) {
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        if (line === "" && data.length > 0) {
          yield data.join("\n");
          data = [];
        }
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    if (signal.aborted) throw new DOMException("stopped", "AbortError");
    throw new ApiFailure("The connection broke off before the answer ended.");
  }
}
