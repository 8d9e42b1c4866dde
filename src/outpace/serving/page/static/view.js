// One answer on the page: its tokens, measures, steps and bars.

import { byId, count, element, number, quoted, throttled } from "./dom.js";
import { Timeline } from "./timeline.js";

const MEANING = {
  accepted: "accepted: drafted, and the model agreed",
  recovered: "recovered: the model's own, where it disagreed with the draft",
  bonus: "bonus: the model's own, after a draft that held",
  plain: "plain: the model's own, nothing was drafted",
};
const FINISH = {
  stop: "The model ended the answer here.",
  length: "Cut at the most tokens that were asked for, or at the model's context.",
};

export class AnswerView {
  #numDrawn = 0;

  // plainSpeed: called when measures are drawn; tokens per second of plain decoding, if known.
  constructor(answer, title, plainSpeed) {
    this.answer = answer;
    this.plainSpeed = plainSpeed;
    this.root = byId("run").content.cloneNode(true).firstElementChild;
    this.root.querySelector(".run-title").textContent = title;
    this.text = this.root.querySelector(".answer");
    this.timeline = new Timeline(this.root);
    this.timeline.table.addEventListener("toggle", () => this.draw());
    this.drawing = throttled(() => this.draw());
  }

  start() {
    this.root.classList.add("running");
    this.text.setAttribute("aria-busy", "true");
  }

  end(note) {
    this.root.classList.remove("running");
    this.text.removeAttribute("aria-busy");
    const { finishReason, wasStopped } = this.answer;
    const why = FINISH[finishReason] ?? (finishReason ? `Ended: ${finishReason}.` : "");
    this.#one(".finish").textContent = note ?? (wasStopped ? "Stopped." : why);
    this.drawing.now();
  }

  draw() {
    const { steps, tokens } = this.answer;
    for (; this.#numDrawn < tokens.length; this.#numDrawn += 1) {
      this.text.append(tokenElement(tokens[this.#numDrawn]));
    }
    this.timeline.draw(steps);
    this.#drawMeasures();
    this.#drawPositions();
  }

  #one(selector) {
    return this.root.querySelector(selector);
  }

  #drawMeasures() {
    const { speed, acceptanceLength, numAccepted, numDrafted, steps, tokens, usage } = this.answer;
    const said = usage?.speculation;
    const values = {
      speed: number(speed, 1),
      length: number(said?.acceptance_length ?? acceptanceLength, 2),
      tokens: number(usage?.completion_tokens ?? tokens.length),
      prompt: usage ? `after ${number(usage.prompt_tokens)} of the prompt` : "",
      passes: number(said?.num_target_passes ?? steps.length),
      drafted: numDrafted ? `${number(numAccepted)} of ${number(numDrafted)} drafted held` : "",
      against: this.#against(speed),
    };
    for (const [name, value] of Object.entries(values)) {
      this.#one(`[data-measure=${name}]`).textContent = value;
    }
  }

  #against(speed) {
    const plain = this.plainSpeed();
    if (!Number.isFinite(plain) || !Number.isFinite(speed) || this.answer.numDrafted === 0) return "";
    return `${number(speed / plain, 2)} × plain (${number(plain, 1)})`;
  }

  #drawPositions() {
    const { positions } = this.answer;
    const most = Math.max(1, ...positions.map((each) => each.drafted ?? each.accepted));
    this.#one(".positions").hidden = positions.length === 0;
    this.#one(".bars tbody").replaceChildren(
      ...positions.map((each, index) => bar(each, index + 1, most)),
    );
  }
}

// The space before a word stays outside of the mark, so that the words stand apart.
function tokenElement({ id, text, kind, origin }) {
  const by = origin ? `, drafted by ${origin}` : "";
  const title = `${quoted(text)} (id ${id}): ${MEANING[kind] ?? kind}${by}`;
  const [, space, rest] = /^( ?)([^]*)$/.exec(text);
  const marks = rest === "" ? [element("span", {}, text)] : [space, element("span", {}, rest)];
  return element("span", { className: `token ${kind}`, title }, ...marks);
}

function bar({ accepted, drafted }, position, most) {
  const track = element("div", { className: "bar" });
  if (drafted !== null) {
    const outline = element("div", { className: "bar-drafted" });
    outline.style.width = `${(100 * drafted) / most}%`;
    track.append(outline);
  }
  const filled = element("div", { className: "bar-held" });
  filled.style.width = `${(100 * accepted) / most}%`;
  track.append(filled);
  const share = drafted ? ` (${number((100 * accepted) / drafted)} %)` : "";
  const words =
    drafted === null ? `${count(accepted, "held", "held")}` : `${accepted} of ${drafted}${share}`;
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, `${position}`),
    element("td", { className: "bar-cell" }, track),
    element("td", { className: "bar-words" }, words),
  );
}
