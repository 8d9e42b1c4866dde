// The page: one form, one request at a time (or two in turn, to compare them).

import { ApiFailure, chunks, getJson } from "./api.js";
import { Answer, comparison } from "./answer.js";
import { byId, count, element, number } from "./dom.js";
import { FormError, readForm } from "./request.js";
import { AnswerView } from "./view.js";

const KEY = "outpace-api-key";
const NARROW = matchMedia("(max-width: 51.99rem)"); // where the answer is below the form
const ENOUGH_TOKENS = 16; // to take a plain answer's speed for the speed of plain decoding

let server = null; // what /page/info said
let running = null; // AbortController of what runs
let plainSpeed = NaN;

async function learnServer() {
  try {
    showServer(await getJson("/page/info", byId("key").value));
    byId("error").hidden = true;
  } catch (error) {
    showFailure(error);
  }
}

function showServer(info) {
  server = info;
  byId("model").textContent = `${server.model} · drafting: ${server.method}`;
  document.title = `${server.model} · Outpace`;
  const chosen = byId("method").value;
  const others = Object.keys(server.methods).filter((name) => name !== server.method);
  byId("method").replaceChildren(
    element("option", { value: "" }, `${server.method} (default)`),
    ...others.map((name) =>
      element("option", { value: name }, name === "none" ? "none (plain decoding)" : name),
    ),
  );
  byId("method").value = others.includes(chosen) ? chosen : "";
  showMethod();
}

// What the choice of a method means for the fields beside it.
function showMethod() {
  const method = byId("method").value || server?.method;
  const isPlain = method === "none";
  byId("draft-length").disabled = isPlain;
  byId("draft-length").placeholder = isPlain ? "nothing drafted" : `up to ${server?.methods[method] ?? "…"}`;
  byId("compare").disabled = running !== null || server?.method === "none";
}

// Runs one request to its end and shows it; true if the answer is complete.
async function answerTo(request, title) {
  const answer = new Answer();
  const view = new AnswerView(answer, title, () => plainSpeed);
  byId("runs").append(view.root);
  if (NARROW.matches) view.root.scrollIntoView();
  view.start();
  let note;
  try {
    const options = { key: byId("key").value, signal: running.signal };
    for await (const chunk of chunks(request.path, request.body, options)) {
      answer.add(chunk);
      view.drawing.soon();
    }
  } catch (error) {
    if (error.name === "AbortError") answer.wasStopped = true;
    else note = "Ended by an error.";
    if (!answer.wasStopped) showFailure(error);
  }
  if (answer.isComplete && request.method === "none" && answer.tokens.length >= ENOUGH_TOKENS) {
    plainSpeed = answer.speed;
  }
  view.end(note);
  return answer;
}

async function send() {
  await whileBusy(async () => {
    const request = await readRequest();
    const title = request.method === "none" ? "Plain" : "Answer";
    const answer = await answerTo(request, title);
    say(ending(answer));
  });
}

async function compare() {
  await whileBusy(async () => {
    const request = await readRequest();
    // Without a seed two sampled answers differ whether one drafts or not.
    const isSampled = (request.body.temperature ?? 1) > 0;
    if (isSampled && request.body.seed === undefined) {
      request.body.seed = crypto.getRandomValues(new Uint16Array(1))[0];
      byId("seed").value = `${request.body.seed}`;
    }
    byId("runs").classList.add("pair");
    const plain = await answerTo(withMethod(request, { method: "none" }, "none"), "Plain");
    if (!plain.isComplete) return say(ending(plain));
    const config = request.method === "none" ? undefined : request.body.speculative_config;
    const method = request.method === "none" ? "" : request.method;
    const name = method || server.method;
    const speculative = await answerTo(withMethod(request, config, method), `Speculative: ${name}`);
    if (!speculative.isComplete) return say(ending(speculative));
    showVerdict(plain, speculative, isSampled);
  });
}

async function readRequest() {
  const request = readForm();
  if (server === null) showServer(await getJson("/page/info", byId("key").value));
  request.body.model = server.model;
  return request;
}

function withMethod(request, config, method) {
  const { speculative_config: _, ...body } = request.body;
  return { ...request, method, body: config ? { ...body, speculative_config: config } : body };
}

function showVerdict(plain, speculative, isSampled) {
  const { differsAt, numTokens, ratio } = comparison(plain, speculative);
  const speeds = `${number(speculative.speed, 1)} tokens per second, plain ${number(plain.speed, 1)}`;
  const pace = ratio < 1 ? "as fast, so slower" : "as fast";
  byId("verdict-speed").replaceChildren(
    element("strong", {}, `${number(ratio, 2)} ×`),
    ` ${pace}: ${speeds}`,
  );
  const same =
    differsAt === null
      ? `Same text: ${number(numTokens)} of ${number(numTokens)} token ids are equal`
      : `Different text, from token ${differsAt + 1} on`;
  const how = isSampled ? "with the same seed" : "decoded greedily";
  byId("verdict-same").textContent = `${same} (${how}).`;
  byId("verdict").classList.toggle("differs", differsAt !== null);
  byId("verdict").hidden = false;
  say(`${byId("verdict-speed").textContent}. ${byId("verdict-same").textContent}`);
}

// Everything that a run of one or two requests begins and ends with.
async function whileBusy(work) {
  if (running) return;
  running = new AbortController();
  setBusy(true);
  byId("runs").replaceChildren();
  byId("runs").classList.remove("pair");
  byId("verdict").hidden = true;
  byId("error").hidden = true;
  for (const field of document.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
  }
  try {
    say("Answering.");
    await work();
  } catch (error) {
    showFailure(error);
  } finally {
    running = null;
    setBusy(false);
  }
}

function setBusy(isBusy) {
  const hadFocus = document.activeElement;
  byId("send").disabled = isBusy;
  showMethod();
  byId("stop").disabled = !isBusy;
  // A disabled button loses the focus, and with it the place on the page.
  if (isBusy && (hadFocus === byId("send") || hadFocus === byId("compare"))) byId("stop").focus();
  if (!isBusy && hadFocus === byId("stop")) byId("send").focus();
}

function showFailure(error) {
  const isKnown = error instanceof ApiFailure || error instanceof FormError;
  const lacksKey = error.status === 401 && byId("key").value === "";
  byId("error").textContent = lacksKey
    ? "This server wants an API key; enter it in the form."
    : isKnown ? error.message : `The page failed: ${error.message}`;
  byId("error").hidden = false;
  byId("error").scrollIntoView({ block: "nearest" });
  say("");
  if (error instanceof FormError) {
    error.field.closest("details")?.setAttribute("open", "");
    error.field.setAttribute("aria-invalid", "true");
    error.field.focus();
  }
  if (error.status === 401) {
    byId("key-part").hidden = false;
    byId("key").focus();
  }
}

function ending(answer) {
  if (answer.wasStopped) return `Stopped after ${count(answer.tokens.length, "token")}.`;
  if (!answer.isComplete) return "";
  const tokens = count(answer.tokens.length, "token");
  return `Done: ${tokens} in ${count(answer.steps.length, "target pass", "target passes")}.`;
}

// For screen readers: beginnings and ends, not every token.
function say(text) {
  byId("status").textContent = text;
}

function showKind() {
  const isChat = byId("ask").elements.kind.value === "chat";
  byId("prompt-label").textContent = isChat ? "Message" : "Text to continue";
  byId("system-part").hidden = !isChat;
}

function keepKey() {
  if (byId("keep-key").checked && byId("key").value) {
    sessionStorage.setItem(KEY, byId("key").value);
  } else {
    sessionStorage.removeItem(KEY);
  }
}

function listen() {
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("compare").addEventListener("click", compare);
  byId("stop").addEventListener("click", () => running?.abort());
  document.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape") {
      running?.abort();
    }
  });
  byId("method").addEventListener("change", showMethod);
  for (const choice of byId("ask").elements.kind) choice.addEventListener("change", showKind);
  byId("key").addEventListener("change", () => {
    keepKey();
    learnServer();
  });
  byId("keep-key").addEventListener("change", keepKey);
}

function recallKey() {
  const kept = sessionStorage.getItem(KEY);
  if (kept === null) return;
  byId("key").value = kept;
  byId("keep-key").checked = true;
  byId("key-part").hidden = false;
}

listen();
recallKey();
learnServer();
